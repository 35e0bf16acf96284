"""What other libraries bring: adapters of PEFT, the trainer of transformers, modules of Lightning."""
