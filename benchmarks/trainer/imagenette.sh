#!/bin/sh
# Imagenette with timm's ConvNeXt-Tiny from random weights: docs/protocol.md, Trainer. Further settings may follow.
set -eu
cgnl data check imagenette2
cgnl train data.root=imagenette2 model.name=timm/convnext_tiny model.block=null data.size=160 data.test_short_side=184 data.augment=trivial data.erase=0.25 data.mixup=0.2 data.cutmix=1 optim.optimizer=adamw optim.lr=0.001 optim.decay_norms=false optim.batch_size=256 optim.epochs=80 optim.warmup_epochs=10 optim.label_smoothing=0.1 optim.clip_norm=1 optim.ema=0.998 compile=true test_every=10 name=imagenette "$@"
