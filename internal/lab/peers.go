package main

import (
	"context"
	"io"

	"github.com/penstock-io/penstock/internal/peers"
)

// listPeers prints which of other people's tools are here.
func listPeers(ctx context.Context, _ []string, out io.Writer) error { return peers.Report(ctx, out) }
