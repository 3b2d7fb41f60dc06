import penstock.mooncake

penstock.mooncake.install()                  # before the program imports mooncake
from mooncake.engine import TransferEngine

engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
