package main

import (
	"context"
	"io"
	"os"
	"strconv"

	"github.com/penstock-io/penstock/cli"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// exitStatus ends the tool with a status other than 0, without a word.
type exitStatus int

func (e exitStatus) Error() string { return "exit status " + strconv.Itoa(int(e)) }

// benchmark runs the benchmarks of penstock with what they lack without the lab.
func benchmark(ctx context.Context, args []string, out io.Writer) error {
	lab := cli.Lab{OpenSSL: peers.OpenSSLStream, Cable: netns.Cable}
	if status := cli.Bench(lab, args, os.Stdin, out, os.Stderr); status != 0 {
		return exitStatus(status)
	}
	return nil
}
