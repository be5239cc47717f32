#!/bin/sh
# Shards against the folder they are packed of: docs/protocol.md, Trainer. Further settings may follow.
set -eu
cgnl data pack imagenette2 imagenette_shards
cgnl train data.root=imagenette2 model.name=resnet18 model.block=null data.size=160 optim.batch_size=256 optim.epochs=3 optim.warmup_epochs=0 test_every=3 deterministic=true name=from_folder "$@"
cgnl train data.dataset=shards data.root=imagenette_shards model.name=resnet18 model.block=null data.size=160 optim.batch_size=256 optim.epochs=3 optim.warmup_epochs=0 test_every=3 deterministic=true name=from_shards "$@"
cgnl report runs/from_folder runs/from_shards
python -m benchmarks.shards imagenette2 --workers 16 --rounds 5
