"""Train one's own torch model on one's own records, privately. Needs quietsum[train].

python examples/02_train.py
"""

import torch
from torch import nn

from quietsum.learning import PrivacyConfig, PrivateTrainer

torch.manual_seed(0)  # made-up records; draws and noise of the training come from the operating system
labels = torch.randint(0, 2, (2_000,))
inputs = torch.randn(2_000, 3) + 1.5 * labels[:, None]
held_out = torch.randint(0, 2, (500,))
public = torch.randn(500, 3) + 1.5 * held_out[:, None]

config = PrivacyConfig(epsilon=2.0, delta=1e-5, epochs=5, batch_size=100, public_size=2_000)
trainer = PrivateTrainer(nn.Linear(3, 2), config)
trainer.train((inputs, labels), learning_rate=0.5)

with torch.no_grad():
    accuracy = (trainer.model(public).argmax(1) == held_out).float().mean()
spent = trainer.guarantee()
print(f"accuracy {accuracy:.2f} on public rows; ε = {spent.epsilon:.3f} per {spent.unit} at δ = {spent.delta:g}")
