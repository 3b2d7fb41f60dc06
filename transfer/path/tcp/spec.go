package tcp

import (
	"github.com/penstock-io/penstock/internal/option"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Spec describes the path.
var Spec = setup.Spec{Name: Name, Doc: "TCP connections, encrypted where the session has a secret.",
	Options: []option.Option{
		{Key: "address", Type: option.Text, Form: "an IP address and a port", Default: "127.0.0.1:0", Field: "Addr",
			Parse: func(text string) (any, error) { _, err := address(text); return text, err },
			Doc:   "Where it listens for the paths of peers that came to a Unix socket."},
		{Key: "congestion", Type: option.Text, Form: "a congestion control such as bbr, or system",
			Field: "CongestionControl",
			Doc: "Congestion control; `system` is the administrator's choice, and so is none " +
				"but on loopback, where an algorithm that paces is not taken."},
		{Key: "zero_copy", Type: option.Bool, Default: "false", Field: "ZeroCopy",
			Doc: "Sends large payloads that are not encrypted from their pages (MSG_ZEROCOPY)."},
		{Key: "ktls", Type: option.Word, Words: []string{"auto", "on", "off"}, Default: "auto", Field: "KTLS",
			Doc: "Whether the kernel encrypts (kTLS); `on` is an error where it cannot."},
	},
	New: func(insecure bool) (any, func() (setup.Driver, error)) {
		o := &Options{Insecure: insecure}
		return o, func() (setup.Driver, error) { return New(*o), nil }
	},
}
