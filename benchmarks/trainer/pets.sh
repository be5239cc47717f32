#!/bin/sh
# Oxford-IIIT Pets with resnet50_caffe from Keras' weights: docs/protocol.md, Trainer. Further settings may follow.
set -eu
cgnl data check oxford-iiit-pet dataset=pets
cgnl train base_pets data.root=oxford-iiit-pet model.name=resnet50_caffe model.weights=resnet50.pth model.block=null optim.new_layers=1 data.cache=gpu compile=true test_every=20 name=pets "$@"
