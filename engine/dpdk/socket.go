//go:build dpdk

package dpdk

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// listens is the Unix socket by which the device of devargs waits for its peer, "" where it has
// none with a file.
func listens(where string) string {
	_, more, _ := strings.Cut(where, ",")
	args := map[string]string{}
	for arg := range strings.SplitSeq(more, ",") {
		name, value, _ := strings.Cut(arg, "=")
		args[name] = value
	}
	switch server := args["role"] == "server" || args["role"] == "master"; {
	case driver(where) == "net_vhost" && args["client"] != "1":
		return args["iface"]
	case driver(where) == "net_memif" && server && args["socket-abstract"] == "no":
		return args["socket"]
	}
	return ""
}

// removeDead removes the socket of a process that was killed: net_memif and net_vhost do not bind
// to a file that is there. A socket of datagrams cannot connect to one of theirs, and a process
// that lives sees nothing of the attempt (connect(2), EPROTOTYPE).
func removeDead(path string) error {
	if i, err := os.Lstat(path); path == "" || err != nil || i.Mode().Type() != os.ModeSocket {
		return nil
	}
	c, err := net.Dial("unixgram", path)
	if err == nil {
		return c.Close()
	}
	if !errors.Is(err, sys.ECONNREFUSED) {
		return nil
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("dpdk: the socket of a process that has ended: %w", err)
	}
	return nil
}
