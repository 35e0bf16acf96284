"""Account: what does a training cost, and how much noise does a budget need? Base install, no data.

python examples/01_account.py
"""

import quietsum as qs

# 60,000 records, batches of 600 by Poisson draws, 20 epochs, noise of 1.1 times the clip.
step = qs.PoissonSampled(rate=0.01, event=qs.Gaussian(noise_multiplier=1.1))
accountant = qs.ExactAccountant().compose(step, times=2_000)
exact = accountant.epsilon(delta=1e-5)
renyi = qs.RenyiAccountant().compose(step, times=2_000).epsilon(delta=1e-5)
print(f"exact  ε = {exact.epsilon:.4f} (at least {exact.epsilon_lower:.4f}) per {exact.unit}")
print(f"Rényi  ε = {renyi.epsilon:.4f}, an upper bound on the same training")

noise = qs.calibrate_noise(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.01, steps=2_000)
print(f"ε = 1 needs a noise multiplier of {noise:.4f}")

# What ε means: how often an attacker who may raise a false alarm once in a hundred tries recognises a record.
rate = qs.true_positive_rate(accountant, false_positive_rate=0.01)
print(f"an attacker finds a record in at most {rate:.1%} of tries, with false alarms in 1 %")
