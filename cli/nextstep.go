package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer"
	"github.com/spf13/cobra"
)

// nextStep says what to do about an error that new users meet, by commands and flags; "" where the
// error says so itself.
func nextStep(c *cobra.Command, err error) string {
	e, network := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, transfer.ErrPlaintext):
		text := "Let the two machines trust each other: \"penstock pair --listen :7071\" on one, then \"penstock pair " +
			"ADDRESS\" on the other."
		if c.Flags().Lookup("insecure") != nil {
			text += " Or permit plaintext with --insecure."
		}
		return text
	case isPair(c) && strings.Contains(err.Error(), "no application protocol"):
		return "A node answers there. Give the address of \"penstock pair --listen\", which has another port."
	case network && e.Op == "dial" && (errors.Is(err, sys.ECONNREFUSED) || e.Net == "unix" &&
		errors.Is(err, fs.ErrNotExist)):
		return "Nothing listens there: " + listener(c, e.Addr)
	case network && e.Op == "listen" && errors.Is(err, sys.EADDRINUSE):
		if a, ok := e.Addr.(*net.TCPAddr); ok {
			return fmt.Sprintf("Another program has port %d: \"ss -ltnp sport = :%d\" shows which one. End it, or take "+
				"another port.", a.Port, a.Port)
		}
		return "Another program has this address: end it, or take another address."
	}
	return ""
}

// isPair reports whether a command is pair or below it.
func isPair(c *cobra.Command) bool {
	return strings.HasPrefix(c.CommandPath()+" ", "penstock pair ")
}

// listener says what makes an address answer.
func listener(c *cobra.Command, addr net.Addr) string {
	a, tcp := addr.(*net.TCPAddr)
	switch {
	case !tcp:
		return "start \"penstock serve DIR --listen unix://PATH\"."
	case isPair(c):
		return fmt.Sprintf("start \"penstock pair --listen :%d\" on the other machine, and leave it running until both "+
			"are paired.", a.Port)
	case a.IP.IsLoopback():
		return fmt.Sprintf("start \"penstock serve DIR --listen tcp://%s\" on this machine; a node of another machine is "+
			"reached at that machine's address.", a)
	}
	return fmt.Sprintf("start \"penstock serve DIR --listen tcp://%s\" on that machine; without --listen it serves its "+
		"own machine alone.", a)
}

// otherNames are commands that users know from other programs, and what does the same here.
var otherNames = map[string]string{
	"cp": fileCommands, "copy": fileCommands, "scp": fileCommands, "transfer": fileCommands,
	"sync": treeCommands, "rsync": treeCommands,
	"upload": meant("put"), "push": meant("put"), "send": meant("put"),
	"download": meant("get"), "pull": meant("get"), "fetch": meant("get"), "receive": meant("get"),
	"list": meant("ls"), "dir": meant("ls"), "delete": meant("rm"), "remove": meant("rm"),
	"listen": meant("serve"), "share": meant("serve"), "info": meant("status"), "login": meant("pair"),
	"init": meant("pair init"),
}

const (
	fileCommands = `"penstock get ADDR/NAME" fetches a file, "penstock put FILE ADDR" uploads one`
	treeCommands = `"penstock mirror ADDR DIR" fetches what a peer serves, and again what has changed; "penstock put DIR ` +
		`ADDR" uploads a directory`
)

func meant(command string) string { return fmt.Sprintf("did you mean %q?", command) }

// swapped says that addr stands where something else goes, and other where an address goes; nil: it
// does not.
func swapped(addr, other, expected string) error {
	if _, err := parseTarget(other); err == nil || isHere(addr) {
		return nil
	}
	if _, err := parseTarget(addr); err != nil {
		return nil
	}
	return &usageError{fmt.Errorf("%s is an address and %s is none: expected %s", addr, other, expected)}
}

// checkListen refuses what is meant as an address to listen on and lacks a part.
func checkListen(flag, addr string) error {
	rest := strings.TrimPrefix(addr, "tcp://")
	port := strings.Trim(rest, "0123456789") == ""
	_, err := netip.ParseAddr(strings.Trim(rest, "[]"))
	switch {
	case rest == "":
		return &usageError{fmt.Errorf("%s %q: expected an address, such as :7070", flag, addr)}
	case port:
		return &usageError{fmt.Errorf("%s %s: a port alone has a colon before it: did you mean :%s (all addresses of "+
			"this machine) or 127.0.0.1:%s (this machine alone)?", flag, addr, rest, rest)}
	case rest == addr && err == nil:
		return &usageError{fmt.Errorf("%s %s: expected a port too: did you mean %s?", flag, addr,
			net.JoinHostPort(strings.Trim(rest, "[]"), defaultPort))}
	}
	return nil
}
