"""usage: torch_mnist.py [RUNS]: the convolutional network for handwritten digits: two convolutions, dropout, two linear
layers, Adam, five epochs.

The runner compares the loss curve of the native and the remote run. More RUNS from the same seed show how far curves
differ on one machine.
"""

import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from digits import make_digits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, stride=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, stride=1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def train(train_x, train_y):
    """Five epochs from a fixed seed; the network, the mean loss of each epoch and the seconds it took."""
    torch.manual_seed(7)
    train_set = torch.utils.data.TensorDataset((train_x - 0.1307) / 0.3081, train_y)
    loader = torch.utils.data.DataLoader(train_set, batch_size=64, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    curve, seconds = [], []
    for epoch in range(5):
        model.train()
        started, total = time.perf_counter(), torch.zeros((), device=device)
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        curve.append(total.item() / len(loader))
        seconds.append((time.perf_counter() - started) / len(loader))
        print(f"epoch {epoch + 1}: loss {curve[-1]:.4f}", flush=True)
    return model, curve, seconds


device = torch.device("cuda")
train_x, train_y = (torch.from_numpy(array) for array in make_digits(12800, 1))
test_x, test_y = (torch.from_numpy(array) for array in make_digits(2000, 2))
curves = []
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    model, curve, seconds = train(train_x, train_y)
    curves.append(curve)

model.eval()
with torch.no_grad():
    right = sum((model(((x - 0.1307) / 0.3081).to(device)).argmax(1).cpu() == y).sum().item()
                for x, y in zip(test_x.split(1000), test_y.split(1000)))
accuracy = right / len(test_y)
print("METRICS " + json.dumps(
    {"accuracy": accuracy, "curve": curves[0], "more_curves": curves[1:], "ms_per_step": 1000 * min(seconds)}))
print("PASSED" if accuracy >= 0.97 else "FAILED")
