"""Commands that plan and train: new, plan, run, train, drill, tradeoff, selfcheck, datasets."""
