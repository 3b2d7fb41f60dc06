// Package benchverbs measures RDMA (internal/ibv and transfer/path/verbs) on one device of this
// machine, which talks to itself: what posting and polling cost, the bandwidth of writes, reads and
// sends, the time of small messages there and back, and what registration costs anew and kept.
// Where perftest is installed, its programs do the same on the same device, in interleaved pairs.
// Every byte that arrives is compared.
//
//	go run ./internal/lab bench verbs --device mlx5_0 --output verbs.json
//
// docs/measurements/verbs-perftest.md has the results. Transfers over RDMA between two processes
// are "penstock bench transfer --path verbs".
package benchverbs
