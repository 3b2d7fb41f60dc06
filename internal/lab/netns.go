package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// inNamespace runs a program in the first of a set of hosts. The addresses of all are printed
// before.
func inNamespace(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("netns", flag.ContinueOnError)
	var top netns.Topology
	f.IntVar(&top.Hosts, "hosts", 2, "how many hosts; more than two are joined by a bridge")
	f.BoolVar(&top.Bridge, "bridge", false, "join two hosts by a bridge as well, instead of a veth pair")
	f.IntVar(&top.Link.MTU, "mtu", 1500, "of all links, in bytes")
	f.IntVar(&top.Link.Queues, "queues", 1, "receive and transmit queues of all links")
	f.Uint64Var(&top.Link.Rate, "rate", 0, "bits per second that each host may send; 0 is no limit")
	f.DurationVar(&top.Link.Delay, "delay", 0,
		"of each packet, each way; with this, -loss or -queue the lab carries the packets itself")
	f.Float64Var(&top.Link.Loss, "loss", 0, "probability that a packet is lost, each way: 0.01")
	f.IntVar(&top.Link.Queue, "queue", 0, "bytes that may wait for the rate before packets are lost; 0 is 262144")
	f.Uint64Var(&top.Link.Seed, "seed", 1, "of the losses")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("netns: expected a command: lab netns -hosts 2 -mtu 9000 -- ping -c 3 10.77.0.2")
	}
	if top.Hosts < 2 {
		return fmt.Errorf("netns: -hosts %d: expected 2 or more", top.Hosts)
	}
	n, err := netns.Open(top)
	if err != nil {
		return err
	}
	for _, h := range n.Hosts {
		fmt.Fprintf(out, "%s %s %s %s\n", h.Name, h.Link().IPv4, h.Link().IPv6, h.Link().MAC)
	}
	cmd := n.Hosts[0].Command(f.Arg(0), f.Args()[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, os.Stderr
	ended := make(chan struct{})
	go func() { // an interrupt closes the hosts, which ends the program
		select {
		case <-ctx.Done():
			n.Close()
		case <-ended:
		}
	}()
	err = n.Hosts[0].Run(cmd)
	close(ended)
	return errors.Join(err, n.Close())
}
