package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
)

// Plan is what Generate makes a file for. Empty fields are filled from the machine.
type Plan struct {
	// Kind is one of Kinds.
	Kind string
	// Tx and Rx are network interfaces of a raw pair. Without them the first two that are up are
	// taken, cards before virtual ones.
	Tx, Rx string
	Engine Engine // of a raw pair: xdp (the default) or afpacket
	Queues int    // of a raw pair, in each direction; 0 is 1
	// Payload is bytes of a packet's UDP payload, of reorder and gpu behind the sequence number; 0:
	// what the MTU has room for, of sockets 1024.
	Payload int
	// Transport is udp (the default) or tcp, of a socket pair.
	Transport string
	// Server and Client are addresses of a socket pair, Server also that of a receiver; the zero
	// Addr is 127.0.0.1.
	Server, Client netip.Addr
	Port           int    // of sockets and of a node; 0: 5000, DefaultPort
	Share          string // what a node shares; "" for nothing
	Listen         netip.Addr
}

// DefaultPort is the port of a node where nothing names another one: in generated files and on
// command lines.
const DefaultPort = 7070

// Kinds are what Generate makes files for: receive, reorder and gpu take UDP packets (to count, to
// place in batches by their sequence numbers, and the same in memory of a GPU), raw sends frames
// from one network interface to another one, socket has a server and a client, transfer a node.
func Kinds() []string {
	return []string{"receive", "reorder", "gpu", "raw", "socket", "transfer"}
}

// ErrGenerate is what errors of Generate wrap.
var ErrGenerate = errors.New("config: no file was made")

// Generate writes a configuration for a machine, with comments that say why. The same plan and
// machine give the same bytes. The file has been checked against the machine: it has no errors.
func Generate(p Plan, h *Host) ([]byte, error) {
	bad := func(format string, args ...any) ([]byte, error) {
		return nil, fmt.Errorf("%w: %s", ErrGenerate, fmt.Sprintf(format, args...))
	}
	var text string
	var err error
	switch p.Kind {
	case "receive", "reorder", "gpu":
		text, err = p.receive(h)
	case "raw":
		text, err = p.raw(h)
	case "socket":
		text, err = p.socket(h)
	case "transfer":
		text, err = p.transfer(h)
	default:
		return bad("kind %q: expected %s", p.Kind, strings.Join(Kinds(), ", "))
	}
	if err != nil {
		return bad("%v", err)
	}
	if _, problems := Load("generated", []byte(text), Options{Host: h}); problems.Err() != nil {
		return bad("%v", problems.Err())
	}
	return []byte(text), nil
}

// RawEngines are the engines of a raw pair: those that take whole frames from network interfaces.
func RawEngines() (out []string) {
	for _, s := range drivers.Table() {
		if s.Built() && s.Needs.Interface && s.Needs.Frames {
			out = append(out, s.Name)
		}
	}
	return out
}

// pick deals out cores of a NUMA node, or of any when it has none left. Core 0 comes last: the
// system likes it.
type pick struct {
	h    *Host
	used map[int]bool
}

func (k *pick) core(node int) int {
	first := -1
	for pass := range 2 {
		for _, c := range k.h.Cores {
			if k.used[c] || pass == 0 && c == 0 || node >= 0 && k.h.nodeOf(c) != node {
				continue
			}
			if first < 0 {
				first = c
			}
		}
		if first >= 0 {
			break
		}
	}
	if first < 0 && node >= 0 {
		return k.core(-1)
	}
	if first >= 0 {
		k.used[first] = true
	}
	return first
}

// line writes "key: core", or why there is none.
func coreLine(indent, key string, core int) string {
	if core < 0 {
		return indent + "# no core of this machine is left for it alone: it runs where the system likes\n"
	}
	return fmt.Sprintf("%s%s: %d\n", indent, key, core)
}

func (p *Plan) choose(h *Host) (tx, rx *HostInterface, err error) {
	var up []*HostInterface
	for i := range h.Interfaces {
		if x := &h.Interfaces[i]; x.Up && !x.Loopback && !x.MAC.IsZero() {
			up = append(up, x)
		}
	}
	slices.SortStableFunc(up, func(a, b *HostInterface) int {
		if (a.PCI != "") != (b.PCI != "") {
			return map[bool]int{true: -1, false: 1}[a.PCI != ""]
		}
		return strings.Compare(a.Name, b.Name)
	})
	find := func(name string, not *HostInterface) (*HostInterface, error) {
		if name != "" {
			if x := h.Interface(name); x != nil {
				return x, nil
			}
			return nil, fmt.Errorf("this machine has no network interface %q", name)
		}
		for _, x := range up {
			if x != not && x.Name != p.Tx && x.Name != p.Rx {
				return x, nil
			}
		}
		return nil, fmt.Errorf("a raw pair takes two network interfaces that are up, and this machine has %s: name "+
			"them, or use a socket pair", plural(len(up), "interface"))
	}
	if tx, err = find(p.Tx, nil); err != nil {
		return nil, nil, err
	}
	if rx, err = find(p.Rx, tx); err == nil && rx == tx {
		err = fmt.Errorf("a raw pair takes two network interfaces, and %s is named twice", tx.Name)
	}
	return tx, rx, err
}

func address(x *HostInterface, or string) string {
	for _, a := range x.Addresses {
		if a.Addr().Is4() {
			return a.Addr().String()
		}
	}
	return or
}

func (p *Plan) raw(h *Host) (string, error) {
	tx, rx, err := p.choose(h)
	if err != nil {
		return "", err
	}
	word, queues, payload := p.Engine, max(1, p.Queues), p.Payload
	if word == "" || word == Auto {
		word = find(func(s *engine.Spec) bool { return s.Needs.Interface })
	}
	if s := word.Spec(); s == nil || !slices.Contains(RawEngines(), s.Name) {
		return "", fmt.Errorf("a raw pair is of an engine of network interfaces such as xdp or afpacket, not %s", word)
	}
	const headers, inIP = 42, 28 // Ethernet, IPv4 and UDP; those within the MTU
	mtu := min(tx.MTU, rx.MTU)
	if payload == 0 {
		payload = max(18, min(mtu, 9000)-inIP)
	}
	if payload < 0 || payload+inIP > mtu {
		return "", fmt.Errorf("a payload of %d bytes does not fit into the MTU of %d", payload, mtu)
	}
	slot := 2048
	for slot < payload+headers+256 { // what the kernel keeps in front of a frame
		slot *= 2
	}
	if queues > 1 && rx.Queues > 0 && queues > rx.Queues {
		return "", fmt.Errorf("%s has %d receive queues, not %d", rx.Name, rx.Queues, queues)
	}
	k := &pick{h: h, used: map[int]bool{}}
	var b strings.Builder
	fmt.Fprintf(&b, `# Frames from %s to %s. Made by "penstock config generate raw" for this machine.
penstock:
  version: 1
  engine: %s
  memory_regions:
`, tx.Name, rx.Name, word)
	for _, r := range []struct {
		name string
		on   *HostInterface
	}{{"tx", tx}, {"rx", rx}} {
		for q := range queues {
			fmt.Fprintf(&b, "    - name: %s%d\n      kind: huge\n      fallback: true      # pages of 4 KiB where no "+
				"huge pages are free\n", r.name, q)
			if r.on.Node >= 0 {
				fmt.Fprintf(&b, "      numa: %d             # where %s is\n", r.on.Node, quoted(r.on.Name))
			}
			fmt.Fprintf(&b, "      num_bufs: 8192\n      buf_size: %s\n", Size(slot))
			fmt.Fprintf(&b, "      align: %s\n", Size(slot))
		}
	}
	var txWork, rxWork []int
	fmt.Fprintf(&b, "  interfaces:\n    - name: tx_port\n      address: %s\n      tx:\n        queues:\n",
		quoted(tx.Name))
	for q := range queues {
		fmt.Fprintf(&b, "          - id: %d\n            memory_regions: [tx%d]\n            offloads: [tx_eth_src]\n%s", q, q, coreLine("            ", "cpu_core", k.core(tx.Node)))
	}
	fmt.Fprintf(&b, "    - name: rx_port\n      address: %s\n      rx:\n        flow_isolation: true      # "+
		"everything else stays with the kernel\n        queues:\n", quoted(rx.Name))
	for q := range queues {
		fmt.Fprintf(&b, "          - id: %d\n            depth: 2048\n            memory_regions: [rx%d]\n%s", q, q,
			coreLine("            ", "cpu_core", k.core(rx.Node)))
	}
	b.WriteString("        flows:\n")
	for q := range queues {
		fmt.Fprintf(&b, "          - name: flow_%d\n            id: %d\n            match: {udp_src: %d, udp_dst: "+
			"%d}\n            actions: [{type: queue, id: %d}]\n", q, q+1, 4096+q, 4096+q, q)
	}
	for range queues {
		txWork, rxWork = append(txWork, k.core(tx.Node)), append(rxWork, k.core(rx.Node))
	}
	b.WriteString("bench_rx:\n")
	for q := range queues {
		fmt.Fprintf(&b, "  - interface_name: rx_port\n    queue_id: %d\n%s", q, coreLine("    ", "cpu_core", rxWork[q]))
	}
	b.WriteString("bench_tx:\n")
	for q := range queues {
		fmt.Fprintf(&b, "  - interface_name: tx_port\n    queue_id: %d\n%s    batch_size: 64\n    payload_size: "+
			"%dB\n    header_size: %dB\n", q, coreLine("    ", "cpu_core", txWork[q]), payload, headers)
		fmt.Fprintf(&b, "    eth_dst_addr: %v      # of %s\n    ip_src_addr: %s\n    ip_dst_addr: %s\n    "+
			"udp_src_port: %d\n    udp_dst_port: %d\n", rx.MAC, rx.Name,
			address(tx, "192.0.2.1"), address(rx, "192.0.2.2"), 4096+q, 4096+q)
	}
	return b.String(), nil
}

// server is the address, the port and the payload of sockets.
func (p *Plan) server() (addr netip.Addr, port, payload int, err error) {
	addr, port, payload = p.Server, cmp.Or(p.Port, 5000), cmp.Or(p.Payload, 1024)
	if !addr.IsValid() {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if port < 1 || port > 65534 {
		err = fmt.Errorf("port %d: expected 1 to 65534", port)
	} else if payload < 1 || payload > 65507 {
		err = fmt.Errorf("a payload of %d bytes: expected 1 to 65507", payload)
	}
	return addr, port, payload, err
}

// receive takes UDP packets; unless they are only counted, a batch of them becomes a tensor that
// peers fetch.
func (p *Plan) receive(h *Host) (string, error) {
	const number, batch = 4, 64 // bytes of the sequence number, packets of a batch
	server, port, payload, err := p.server()
	if err == nil && p.Kind != "receive" && (payload%2 != 0 || payload > 65507-number) {
		err = fmt.Errorf("a payload of %d bytes: expected whole samples of 2 bytes, and at most %d bytes", payload,
			65506-number)
	}
	if err != nil {
		return "", err
	}
	kind, memory, out, element := "cpu", "host", "fp32", 4
	if p.Kind == "gpu" {
		kind, memory, out, element = "gpu", "device", "fp16", 2
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# UDP packets. Made by \"penstock config generate %s\" for this machine.\npenstock:\n  "+
		"version: 1\n",
		p.Kind)
	if p.Kind == "gpu" && h.GPUs == 0 {
		b.WriteString("  gpu_runtime: host      # no GPU is here: the processor takes its place; opencl: PoCL does\n")
	}
	fmt.Fprintf(&b, "  memory_regions:\n    - {name: packets, kind: host, num_bufs: 4096, buf_size: %s}\n",
		Size((payload+number+63)/64*64))
	if p.Kind != "receive" {
		fmt.Fprintf(&b, "    - {name: batches, kind: %s, num_bufs: 8, buf_size: %s}      # a batch in each slot\n",
			memory,
			Size((batch*payload/2*element+63)/64*64))
	}
	fmt.Fprintf(&b, "  interfaces:\n    - name: port\n      address: %s\n      rx:\n",
		quoted((&Endpoint{"udp", server, port}).String()))
	if p.Kind == "receive" {
		b.WriteString("        queues: [{memory_regions: [packets]}]\n  applications:\n    - {kind: count, " +
			"interface: port}\n")
		return b.String(), nil
	}
	fmt.Fprintf(&b, `        queues: [{memory_regions: [packets], timeout: 1s}]      # a batch waits no longer for its packets
        reorder:
          - name: samples
            reorder_type: %s
            memory_region: batches
            flow_ids: [0]                  # all packets of the socket
            payload_byte_offset: %d         # samples stand behind the sequence number
            payload_size: %d
            data_types: {input_type: int16, output_type: %s, endianness: network}
            method:
              seq_packets_per_batch:
                sequence_number: {bit_offset: 0, bit_width: %d}
                packets_per_batch: %d
  transfers: {listen: ["tcp://127.0.0.1:%d"]}
  applications:
    - kind: sink                           # peers fetch the newest batch by this name
      interface: port
      tensor: {name: samples, dtype: f%d, shape: [1, %d]}
`, kind, number, payload, out, 8*number, batch, DefaultPort, 8*element, batch*payload/2)
	return b.String(), nil
}

func (p *Plan) socket(h *Host) (string, error) {
	transport, client := p.Transport, p.Client
	if transport == "" {
		transport = "udp"
	}
	if transport != "udp" && transport != "tcp" {
		return "", fmt.Errorf("transport %q: expected udp or tcp", transport)
	}
	server, port, size, err := p.server()
	if err != nil {
		return "", err
	}
	if !client.IsValid() {
		client = server
	}
	k := &pick{h: h, used: map[int]bool{}}
	var b strings.Builder
	fmt.Fprintf(&b, `# A server and a client over %s. Made by "penstock config generate socket" for this machine.
penstock:
  version: 1
  memory_regions:
`, transport)
	for _, name := range []string{"server_rx", "server_tx", "client_rx", "client_tx"} {
		fmt.Fprintf(&b, "    - {name: %s, kind: host, num_bufs: 2048, buf_size: %s}\n", name, Size((size+63)/64*64))
	}
	s := Endpoint{transport, server, port}
	c := Endpoint{transport, client, port + 1}
	b.WriteString("  interfaces:\n")
	for _, side := range []struct{ mode, addr string }{{"server", "local: " + quoted(s.String())},
		{"client", "local: " + quoted(c.String()) + "\n        remote: " + quoted(s.String())}} {
		fmt.Fprintf(&b, "    - name: %s\n      socket:\n        mode: %s\n        %s\n", side.mode, side.mode,
			side.addr)
		fmt.Fprintf(&b, "      rx:\n        queues:\n          - memory_regions: [%s_rx]\n", side.mode)
		fmt.Fprintf(&b, "      tx:\n        queues:\n          - memory_regions: [%s_tx]\n", side.mode)
	}
	for _, side := range []string{"server", "client"} {
		fmt.Fprintf(&b, "socket_bench_%s:\n  server: %v\n  send: %v\n  receive: %v\n%s  message_size: %dB\n  "+
			"server_address: %v\n  client_address: %v\n  server_port: %d\n", side, side == "server",
			side == "client", side == "server", coreLine("  ", "cpu_core", k.core(-1)), size, quoted(server.String()),
			quoted(client.String()), port)
	}
	return b.String(), nil
}

func (p *Plan) transfer(h *Host) (string, error) {
	port, listen := p.Port, p.Listen
	if port == 0 {
		port = DefaultPort
	}
	if port < 1 || port > 65535 {
		return "", fmt.Errorf("port %d: expected 1 to 65535", port)
	}
	if !listen.IsValid() {
		listen = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	name := h.Name
	if name == "" {
		name = "node"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# A node for transfers. Made by \"penstock config generate transfer\" for this "+
		"machine.\npenstock:\n  version: 1\n  transfers:\n    name: %s\n", quoted(name))
	fmt.Fprintf(&b, "    listen: [%s]\n    paths: [shm, tcp]      # shared memory on this machine, TCP beyond\n    "+
		"budget: 1GiB           # what tensors of peers may take\n",
		quoted("tcp://"+netip.AddrPortFrom(listen, uint16(port)).String()))
	if p.Share != "" {
		fmt.Fprintf(&b, "    share:\n      path: %s\n      writable: false\n", quoted(p.Share))
	}
	if !listen.IsLoopback() {
		b.WriteString("  security:\n    floor: encrypted       # the identity is the user's: \"penstock pair\" " +
			"makes one\n")
	}
	return b.String(), nil
}
