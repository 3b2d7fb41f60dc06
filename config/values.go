package config

import (
	"fmt"
	"github.com/penstock-io/penstock/internal/input"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. Its text has a unit: 4096, 4KiB, 2MiB, 1.5GiB, 1kB (1000 bytes).
type Size int64

// Rate is a number of bits per second. Its text has a unit: 10Gbps, 100Mbps, 2.5Gb/s.
type Rate uint64

// ParseSize reads what String writes, and all that a file can say of a size; a number without a
// unit counts bytes.
func ParseSize(s string) (Size, error) {
	n, err := input.Quantity(s, input.Sizes, 1)
	if err != nil {
		return 0, fmt.Errorf("size %q %w", s, err)
	}
	return Size(n), nil
}

// String writes the size exactly, in the largest binary unit that fits: "4096" is "4KiB", 1000 is
// "1000B".
func (s Size) String() string { return input.Exact(int64(s), input.Sizes, 5) }

// String writes the rate exactly, in the largest unit that fits.
func (r Rate) String() string { return input.Exact(int64(r), input.Rates, 5) }

// MarshalText writes the form of String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText writes the form of String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// duration writes d exactly, in the largest unit that fits.
func duration(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	return input.Exact(int64(d), input.Times, 6)
}

// about writes a number of bytes for people, to three digits.
func about(n int64) string {
	f, names := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for f >= 1024 && i < len(names)-1 {
		f /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.3g %s", f, names[i])
}

// Endpoint is an address of a socket with its protocol: udp://, tcp://, roce:// or rdma:// (which
// is the same), a host that is an address, and a port. The zero Endpoint is absent.
type Endpoint struct {
	Scheme string // udp, tcp, roce
	Host   netip.Addr
	Port   int // 0: none was given
}

// IsZero reports absence.
func (e Endpoint) IsZero() bool { return e == Endpoint{} }

func (e Endpoint) String() string {
	if e.IsZero() {
		return ""
	}
	host := ""
	if e.Host.IsValid() {
		host = e.Host.String()
	}
	if e.Port == 0 {
		if e.Host.Is6() {
			host = "[" + host + "]"
		}
		return e.Scheme + "://" + host
	}
	return e.Scheme + "://" + net.JoinHostPort(host, strconv.Itoa(e.Port))
}

// MarshalText writes the form of String.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// hostPort is the endpoint without its scheme.
func (e Endpoint) hostPort() string {
	host := ""
	if e.Host.IsValid() {
		host = e.Host.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(e.Port))
}

func parseEndpoint(s string) (Endpoint, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return Endpoint{}, fmt.Errorf("has no protocol")
	}
	if scheme == "rdma" {
		scheme = "roce"
	}
	if scheme != "udp" && scheme != "tcp" && scheme != "roce" {
		return Endpoint{}, fmt.Errorf("has the unknown protocol %q", scheme)
	}
	rest, query, _ := strings.Cut(rest, "?")
	if query != "" {
		v, err := url.ParseQuery(query)
		if err != nil || len(v) != 1 || v.Get("engine") != "ibverbs" {
			return Endpoint{}, fmt.Errorf("asks for %q: the only query is engine=ibverbs", query)
		}
	}
	e := Endpoint{Scheme: scheme}
	host, port := rest, ""
	if h, p, err := net.SplitHostPort(rest); err == nil {
		host, port = h, p
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Endpoint{}, fmt.Errorf("has the port %q: a port is 1 to 65535", port)
		}
		e.Port = int(n)
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if host != "" {
		a, err := netip.ParseAddr(host)
		if err != nil {
			return Endpoint{}, fmt.Errorf("has the host %q, which is not an IP address", host)
		}
		e.Host = a
	}
	if host == "" && port == "" {
		return Endpoint{}, fmt.Errorf("names neither a host nor a port")
	}
	return e, nil
}
