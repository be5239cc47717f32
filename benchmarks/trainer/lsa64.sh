#!/bin/sh
# LSA64, signs by ten signers, with a C2D ResNet-50: docs/protocol.md, Trainer. Further settings may follow.
set -eu
cgnl data shrink LSA64 lsa64_small short_side=128 frames=32
cgnl data check lsa64_small dataset=lsa64 min_frames=32
cgnl train base_lsa64 data.root=lsa64_small model.name=c2d_resnet50_caffe model.weights=resnet50.pth data.cache=gpu compile=true test_every=20 name=lsa64 "$@"
