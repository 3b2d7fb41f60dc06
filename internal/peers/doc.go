// Package peers finds and runs programs of other projects (iperf3, UCX, perftest, testpmd, numpy,
// etcd), and parses their output.
//
// Each has a function that runs it with typed options and returns what it printed as typed values
// with units, or an error that holds the end of its output. [All] is the table of them: which
// Debian package brings a peer, whether it is here, and the version that it reports.
// scripts/deps.sh installs them.
//
// Every run ends within a time limit, and nothing of it stays: the processes die with the process
// that started them, also when that one is killed, and so do their directories. The benchmarks of
// the product run peers too, so nothing here is for tests alone: what skips a test without a peer,
// and what is compiled for one, is package internal/lab/testenv/peers.
package peers
