package config

import (
	"fmt"
	"math/big"
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

type unit struct {
	name string
	of   int64
}

// The first unit of a value is the one that a size without a unit has.
var (
	sizeUnits = []unit{{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
		{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}
	rateUnits = []unit{{"bps", 1}, {"kbps", 1e3}, {"Mbps", 1e6}, {"Gbps", 1e9}, {"Tbps", 1e12},
		{"b/s", 1}, {"kb/s", 1e3}, {"Mb/s", 1e6}, {"Gb/s", 1e9}, {"Tb/s", 1e12}}
	timeUnits = []unit{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {"µs", 1e3}}
)

// maxNumber bounds the length of a number with a unit: longer ones are not numbers that anybody means.
const maxNumber = 40

// quantity reads a number with a unit. bare is what a number without one counts, 0 for "it must have one". The error says what is
// wrong, without the text itself.
func quantity(s string, units []unit, bare int64) (int64, error) {
	if s == "" {
		return 0, fmt.Errorf("is empty")
	}
	if s[0] == '-' {
		return 0, fmt.Errorf("is less than nothing")
	}
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
		i++
	}
	number, name := s[:i], strings.TrimSpace(s[i:])
	if number == "" || strings.Count(number, ".") > 1 || number[0] == '.' || number[len(number)-1] == '.' || len(s) > maxNumber {
		return 0, fmt.Errorf("is not a number with a unit")
	}
	of := bare
	if name != "" {
		of = 0
		for _, u := range units {
			if u.name == name {
				of = u.of
			}
		}
		if of == 0 {
			var names []string
			for _, u := range units {
				names = append(names, u.name)
			}
			return 0, fmt.Errorf("has the unknown unit %q%s", name, unitHint(name, names))
		}
	} else if strings.Trim(number, "0.") == "" {
		return 0, nil
	} else if bare == 0 {
		return 0, errNoUnit
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf("is not a number with a unit")
	}
	r.Mul(r, new(big.Rat).SetInt64(of))
	if !r.IsInt() {
		return 0, fmt.Errorf("is not a whole number of %s", units[0].name)
	}
	if !r.Num().IsInt64() {
		return 0, fmt.Errorf("is too large")
	}
	return r.Num().Int64(), nil
}

var errNoUnit = fmt.Errorf("has no unit")

// unitHint names the unit that was probably meant: K and k are the usual traps.
func unitHint(name string, names []string) string {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return fmt.Sprintf(": did you mean %s?", n)
		}
	}
	for _, n := range names {
		if strings.EqualFold(n[:1], name[:1]) && n != "m" {
			return fmt.Sprintf(": did you mean %s?", n)
		}
	}
	return ""
}

// exact writes n in the largest of the first count units that divides it.
func exact(n int64, units []unit, count int) string {
	best := units[0]
	for _, u := range units[:count] {
		if n != 0 && n%u.of == 0 && u.of > best.of {
			best = u
		}
	}
	return strconv.FormatInt(n/best.of, 10) + best.name
}

// ParseSize reads what String writes, and all that a file can say of a size; a number without a unit counts bytes.
func ParseSize(s string) (Size, error) {
	n, err := quantity(s, sizeUnits, 1)
	if err != nil {
		return 0, fmt.Errorf("size %q %w", s, err)
	}
	return Size(n), nil
}

// String writes the size exactly, in the largest binary unit that fits: "4096" is "4KiB", 1000 is "1000B".
func (s Size) String() string { return exact(int64(s), sizeUnits, 5) }

// String writes the rate exactly, in the largest unit that fits.
func (r Rate) String() string { return exact(int64(r), rateUnits, 5) }

// MarshalText writes the form of String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText writes the form of String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// duration writes d exactly, in the largest unit that fits.
func duration(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	return exact(int64(d), timeUnits, 6)
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

// Endpoint is an address of a socket with its protocol: udp://, tcp://, roce:// or rdma:// (which is the same), a host that is an
// address, and a port. The zero Endpoint is absent.
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

// Engine is the word that chooses an engine.
type Engine string

// The engines. Which of them are in this program, Built tells.
const (
	Auto      Engine = "auto" // by the address
	Sim       Engine = "sim"
	Sockets   Engine = "socket"
	AFP       Engine = "afpacket"
	AFXDP     Engine = "xdp"
	DPDK      Engine = "dpdk"
	Verbs     Engine = "verbs" // frames by raw packet queue pairs of a card
	RDMA      Engine = "rdma"  // connections over RDMA: roce:// addresses
	GPUNetIO  Engine = "gpunetio"
	EFAFabric Engine = "efa"
	PCIe      Engine = "pcie"
)

// missingEngine says of each engine that is not in this program why, and what to use until then.
var missingEngine = map[Engine]string{
	DPDK:      "is not built: with the name of a network interface as address, the engines xdp and afpacket do the same work through the kernel",
	GPUNetIO:  "is not built: it needs NVIDIA's DOCA; the engines xdp and afpacket receive into host memory",
	EFAFabric: "is not built: it needs libfabric and an AWS machine; the engine socket carries the same bytes over udp:// and tcp://",
	PCIe:      "is not built: it needs the FPGA card and its driver",
}

// Built reports whether an engine is part of this program. Whether it can run on a machine, engine.Engine.Available tells.
func (e Engine) Built() bool { return e != "" && e != Auto && missingEngine[e] == "" }

// frames reports whether its packets are whole Ethernet frames, steered by flows.
func (e Engine) frames() bool {
	switch e {
	case Sockets, RDMA, EFAFabric, PCIe:
		return false
	}
	return true
}

// onDevice reports whether its address is a network device of this machine.
func (e Engine) onDevice() bool {
	switch e {
	case AFP, AFXDP, DPDK, Verbs, GPUNetIO:
		return true
	}
	return false
}
