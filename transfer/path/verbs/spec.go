package verbs

import (
	"errors"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/option"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Spec describes the path.
var Spec = setup.Spec{Name: Name, RDMA: true,
	Doc: "RDMA; see docs/verbs.md. It is not encrypted: between machines it needs `security: {insecure: true}`.",
	Options: []option.Option{
		{Key: "device", Type: option.Text, Form: "a device such as mlx5_0", Field: "Device", Asks: "rdma",
			Doc: "RDMA device; without it the first that has an active port (`penstock doctor rdma` lists them)."},
		{Key: "port", Type: option.Int, Max: 255, Default: "0", Field: "Port",
			Doc: "Its port, counted from 1; 0 is the first that is active."},
		{Key: "gid", Type: option.Int, Max: 65535, Field: "GID",
			Doc: "Index of the port's address (GID) in its table; without it the path chooses, and says why."},
		{Key: "for", Type: option.IP, Field: "For",
			Doc: "IP address of a peer, for which the GID is chosen: one of the same network."},
		{Key: "queue_pairs", Type: option.Int, Min: 1, Max: maxQPs, Default: strconv.Itoa(DefaultQueuePairs),
			Field: "QueuePairs",
			Doc:   "Queue pairs for data of each path, unless `streams` says otherwise. Both sides have the same."},
		{Key: "depth", Type: option.Int, Min: 4 * keepSmall, Max: maxDepth, Default: strconv.Itoa(DefaultDepth),
			Field: "Depth", Doc: "Requests in the queue of each."},
		{Key: "timeout", Type: option.Int, Min: 1, Max: 31, Default: strconv.Itoa(DefaultTimeout), Field: "Timeout",
			Doc: "How long the adapter waits for an acknowledgement before it sends again, 6 times: " +
				"4.096 us x 2^`timeout`, so 14 is 67 ms."},
		between(option.Option{Key: "piece", Type: option.Bytes, Min: 4 << 10, Max: 1 << 30, Field: "Piece",
			Doc: "Bytes that one request moves at most: one size, or bounds between which the path looks for the " +
				"best one."},
			"64KiB-8MiB"),
		between(option.Option{Key: "signal", Type: option.Int, Min: 1, Max: 64, Field: "Signal",
			Doc: "One request of so many is signalled: a number, or bounds."}, "4-64"),
		between(option.Option{Key: "ahead", Type: option.Bytes, Min: 64 << 10, Max: 1 << 30, Field: "Ahead",
			Doc: "Bytes of large operations at the adapter: one size, or bounds."}, "1MiB-32MiB"),
		between(option.Option{Key: "inline", Type: option.Bytes, Max: 64 << 10, Field: "Inline !NoInline",
			Doc: "Bytes that travel in the request itself at most: one size, or bounds; 0 for none."}, "0-220"),
		{Key: "windows", Type: option.Bool, Default: "true", Field: "!NoWindows",
			Doc: "Lets peers in by memory windows. `false`, as where the device has none: each peer has a " +
				"protection domain of its own."},
		{Key: "library", Type: option.Text, Form: "a file of libibverbs", Field: "Library",
			Doc: "libibverbs; without it the system's."},
	},
	Gone: []setup.Gone{
		{Key: "rails", Why: "it was renamed: queue_pairs is the number of queue pairs for data"},
		{Key: "transport", Why: "it was removed: all paths have reliable connections (RC)"},
		{Key: "initiators", Why: "it was removed with the transport dc: queue_pairs is the number of queue pairs " +
			"for data"},
		{Key: "meet", Why: "it was removed: nodes exchange descriptions of their endpoints over their session, " +
			"and listen for no peers at the adapter"},
	},
	New: func(insecure bool) (any, func() (setup.Driver, error)) {
		o := &Options{Insecure: insecure}
		return o, func() (setup.Driver, error) { return New(*o), o.Check() }
	},
}

// between makes an option of one number an option of Bounds: one number, or two with a dash between
// them.
func between(o option.Option, such string) option.Option {
	of := o
	o.Type, o.Form = option.Text, of.Expects()+", or bounds such as "+such
	o.Parse = func(text string) (any, error) {
		low, high, two := strings.Cut(text, "-")
		if !two {
			high = low
		}
		var b Bounds
		for bound, text := range map[*uint64]string{&b.Min: low, &b.Max: high} {
			v, err := of.Value(strings.TrimSpace(text))
			var e *option.Error
			if errors.As(err, &e) {
				return nil, errors.New(e.Wrong)
			}
			*bound = uint64(v.(int64))
		}
		if b.Min > b.Max {
			return nil, errors.New("it begins above its end")
		}
		return b, nil
	}
	return o
}
