package config

import (
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/stage/record"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// The structs below are what a file says. The tag cfg is the key in the file; its meaning, type,
// range and default are in the table, which docs/config.md prints. After Load the values are the
// effective ones, with defaults and what was derived in place; Config.Source tells which is which.
// All of it is data that a program may as well write itself: then Config.Check looks at it.

// Config is one file.
type Config struct {
	Version      int           `cfg:"version"`
	MasterCore   int           `cfg:"master_core"` // -1: none
	Engine       Engine        `cfg:"engine"`      // of interfaces that name none
	GPURuntime   string        `cfg:"gpu_runtime"` // auto, cuda, opencl, host
	Logging      Logging       `cfg:"logging"`
	Metrics      *Metrics      `cfg:"metrics"`
	Regions      []Region      `cfg:"memory_regions"`
	Interfaces   []Interface   `cfg:"interfaces"`
	Transfers    *Transfers    `cfg:"transfers"`
	Security     *Security     `cfg:"security"`
	Registry     *Registry     `cfg:"registry"`
	Applications []Application `cfg:"applications"`

	// Sections of DAQIRI's benchmarks, which lie beside the configuration and drive ours.
	BenchRx      []BenchRx     `cfg:"bench_rx"`
	BenchTx      []BenchTx     `cfg:"bench_tx"`
	SocketServer *BenchSocket  `cfg:"socket_bench_server"`
	SocketClient *BenchSocket  `cfg:"socket_bench_client"`
	RDMAServer   *BenchSocket  `cfg:"rdma_bench_server"`
	RDMAClient   *BenchSocket  `cfg:"rdma_bench_client"`
	Quantize     *Quantize     `cfg:"bench_reorder_quantize"`
	Latency      *BenchLatency `cfg:"bench_latency"`

	name    string
	dialect Dialect
	sources map[string]Source
	needs   Diagnostics // see Needs
	ignored []Pos       // what says nothing to an engine, in a file of DAQIRI's
}

// Logging says what the program writes of itself.
type Logging struct {
	Level  string `cfg:"level"`  // trace, debug, info, warn, error, critical, off
	Format string `cfg:"format"` // text, json
	File   string `cfg:"file"`   // "": standard error
}

// Least is the level from which on records are logged; false: none are. trace and critical lie
// beyond what package slog names.
func (l Logging) Least() (slog.Level, bool) {
	switch l.Level {
	case "trace":
		return slog.LevelDebug - 4, true
	case "debug":
		return slog.LevelDebug, true
	case "info":
		return slog.LevelInfo, true
	case "warn":
		return slog.LevelWarn, true
	case "error":
		return slog.LevelError, true
	case "critical":
		return slog.LevelError + 4, true
	}
	return 0, false
}

// Metrics says where counts can be read.
type Metrics struct {
	Listen string `cfg:"listen"` // host:port
}

// Region is memory for packets: NumBufs slots of BufSize bytes.
type Region struct {
	Name     string   `cfg:"name"`
	Kind     string   `cfg:"kind"` // host, huge, host_pinned, device
	NUMA     int      `cfg:"numa"` // -1: any
	GPU      int      `cfg:"gpu"`
	Access   []string `cfg:"access"` // local; rdma_write and rdma_read are not built
	NumBufs  int      `cfg:"num_bufs"`
	BufSize  Size     `cfg:"buf_size"`
	Align    Size     `cfg:"align"`
	PageSize Size     `cfg:"page_size"`
	Fallback bool     `cfg:"fallback"`
	Owned    bool     `cfg:"owned"`
}

// Interface is a port of an engine.
type Interface struct {
	Name    string  `cfg:"name"`
	Engine  Engine  `cfg:"engine"`
	Address string  `cfg:"address"`
	MTU     int     `cfg:"mtu"` // 0: as it is
	Reopen  bool    `cfg:"reopen"`
	Socket  *Socket `cfg:"socket"`
	// Sections are the options of engines as text, by the section of the file and by key: "xdp":
	// {"ring": "4096"}. Which there are, package engine/drivers says; a list has commas between its
	// values.
	Sections map[string]engine.Settings `cfg:"*"`
	Rx       *Rx                        `cfg:"rx"`
	Tx       *Tx                        `cfg:"tx"`
}

// Socket is how an interface of the engine socket, or of RDMA connections, is reached.
type Socket struct {
	Mode   string   `cfg:"mode"` // client, server
	Local  Endpoint `cfg:"local"`
	Remote Endpoint `cfg:"remote"`
}

// Rx is the receiving half of an interface.
type Rx struct {
	FlowIsolation       bool       `cfg:"flow_isolation"`
	TakeOver            bool       `cfg:"take_over"`
	HardwareTimestamps  bool       `cfg:"hardware_timestamps"`
	Timestamps          bool       `cfg:"timestamps"`
	DynamicFlowCapacity int        `cfg:"dynamic_flow_capacity"`
	Queues              []RxQueue  `cfg:"queues"`
	FlexItems           []FlexItem `cfg:"flex_items"`
	Flows               []Flow     `cfg:"flows"`
	Reorder             []Reorder  `cfg:"reorder"`
}

// RxQueue is a receive queue.
type RxQueue struct {
	Name      string        `cfg:"name"`
	ID        int           `cfg:"id"`
	PollMode  string        `cfg:"poll_mode"` // indirect, event, adaptive, busy, direct
	CPUCore   int           `cfg:"cpu_core"`  // of its poller; -1: not pinned
	BatchSize int           `cfg:"batch_size"`
	Depth     int           `cfg:"depth"`
	Regions   []string      `cfg:"memory_regions"` // one, or two: headers and payload
	SplitAt   int           `cfg:"split_at"`
	Timeout   time.Duration `cfg:"timeout"`
	Stages    []Stage       `cfg:"stages"` // from the queue to the application

	Sections map[string]engine.Settings `cfg:"*"` // options of engines, as of the interface
}

// Stage is what packets pass between a receive queue and the application.
type Stage struct {
	Type      string `cfg:"type"` // what engine.FindStage finds: a word, with options behind it as in an address
	Recording        // of the stage record
}

// FlexItem names a place in UDP payloads that flows can match.
type FlexItem struct {
	Name   string `cfg:"name"`
	ID     int    `cfg:"id"`
	Port   int    `cfg:"udp_dst_port"` // 0: any
	Offset int    `cfg:"offset"`
}

// Flow is a steering rule: Rx.Rules and Tx.Rules make a flow.Rule of it.
type Flow struct {
	Name     string   `cfg:"name"`
	ID       int      `cfg:"id"`
	Priority int      `cfg:"priority"`
	Match    Match    `cfg:"match"`
	Actions  []Action `cfg:"actions"`
}

// Match is what a flow asks of a packet: all of it.
type Match struct {
	EthSrc    flow.Opt[packet.MAC]       `cfg:"eth_src"`
	EthDst    flow.Opt[packet.MAC]       `cfg:"eth_dst"`
	EtherType flow.Opt[packet.EtherType] `cfg:"eth_type"`
	VLAN      flow.Opt[flow.VLAN]        `cfg:"vlan"`
	InnerVLAN flow.Opt[flow.VLAN]        `cfg:"inner_vlan"`
	IPSrc     netip.Prefix               `cfg:"ip_src"`
	IPDst     netip.Prefix               `cfg:"ip_dst"`
	IPProto   flow.Opt[packet.Proto]     `cfg:"ip_proto"`
	IPLen     flow.Opt[flow.Range]       `cfg:"ip_len"`
	UDPSrc    flow.Opt[flow.Range]       `cfg:"udp_src"`
	UDPDst    flow.Opt[flow.Range]       `cfg:"udp_dst"`
	TCPSrc    flow.Opt[flow.Range]       `cfg:"tcp_src"`
	TCPDst    flow.Opt[flow.Range]       `cfg:"tcp_dst"`
	FlexItem  flow.Opt[int]              `cfg:"flex_item_id"`
	FlexVal   flow.Opt[uint32]           `cfg:"val"`
	FlexMask  flow.Opt[uint32]           `cfg:"mask"`
	Flex      []FlexWord                 `cfg:"flex"`
	ECPRI     ECPRI                      `cfg:"ecpri"`
}

// FlexWord asks for bits of the payload.
type FlexWord struct {
	Offset int    `cfg:"offset"`
	Value  uint32 `cfg:"value"`
	Mask   uint32 `cfg:"mask"`
}

// ECPRI asks for fields of an eCPRI message.
type ECPRI struct {
	Type  flow.Opt[uint8]  `cfg:"msg_type"`
	PCID  flow.Opt[uint16] `cfg:"pc_id"`
	RTCID flow.Opt[uint16] `cfg:"rtc_id"`
}

// Action is one step of what happens to a packet of a flow.
type Action struct {
	Type   string           `cfg:"type"` // queue, drop, kernel, vlan_pop, vlan_push, tunnel_decap, tunnel_encap
	ID     flow.Opt[int]    `cfg:"id"`
	IDs    []int            `cfg:"ids"`
	VLANID flow.Opt[int]    `cfg:"vlan_id"`
	PCP    int              `cfg:"pcp"`
	DEI    int              `cfg:"dei"`
	TPID   packet.EtherType `cfg:"ethertype"`
	Tunnel *Tunnel          `cfg:"tunnel"`
}

// Tunnel is the outer headers of an encapsulation.
type Tunnel struct {
	Type     string           `cfg:"type"` // vxlan, gre, nvgre
	EthSrc   packet.MAC       `cfg:"outer_eth_src"`
	EthDst   packet.MAC       `cfg:"outer_eth_dst"`
	IPSrc    netip.Addr       `cfg:"outer_ip_src"`
	IPDst    netip.Addr       `cfg:"outer_ip_dst"`
	TTL      int              `cfg:"outer_ttl"`
	TOS      int              `cfg:"outer_tos"`
	UDPSrc   int              `cfg:"outer_udp_src"`
	UDPDst   int              `cfg:"outer_udp_dst"`
	VNI      flow.Opt[int]    `cfg:"vni"`
	Protocol packet.EtherType `cfg:"gre_protocol"`
	TNI      flow.Opt[int]    `cfg:"tni"`
	FlowID   int              `cfg:"flow_id"`
}

// Reorder puts packets of flows into aligned batches.
type Reorder struct {
	Name          string        `cfg:"name"`
	Engine        string        `cfg:"reorder_engine"` // sw, hw
	Type          string        `cfg:"reorder_type"`   // gpu, cpu
	Cyclic        bool          `cfg:"cyclic_sequence"`
	MissingAction string        `cfg:"missing_action"` // passthrough, drop
	PacketSize    Size          `cfg:"packet_size"`
	Region        string        `cfg:"memory_region"`
	PayloadOffset int           `cfg:"payload_byte_offset"`
	PayloadSize   Size          `cfg:"payload_size"`
	Window        int           `cfg:"window"`
	Channels      int           `cfg:"channels"`
	FlowIDs       []int         `cfg:"flow_ids"`
	DataTypes     *DataTypes    `cfg:"data_types"`
	Method        ReorderMethod `cfg:"method"`
}

// Takes reports whether packets of a queue become batches of the plan: those without a flow, or of
// a flow that steers to the queue.
func (r *Reorder) Takes(rx *Rx, queue int) bool {
	return slices.Contains(r.FlowIDs, 0) || slices.ContainsFunc(rx.Flows, func(f Flow) bool {
		return slices.Contains(r.FlowIDs, f.ID) && slices.ContainsFunc(f.Actions, func(a Action) bool {
			return a.Type == "queue" && (a.ID.Set && a.ID.Value == queue || slices.Contains(a.IDs, queue))
		})
	})
}

// Plan is the plan that it describes, without its memory and its timeout.
func (r *Reorder) Plan() reorder.Plan {
	field := func(b BitField) reorder.Field { return reorder.Field{Offset: b.Offset, Width: b.Width} }
	p := reorder.Plan{Name: r.Name, Offset: r.PayloadOffset, Payload: int(r.PayloadSize), Window: r.Window,
		Channels: r.Channels}
	for _, id := range r.FlowIDs {
		p.Flows = append(p.Flows, uint32(id))
	}
	if m := r.Method.BatchNumber; m != nil {
		p.Sequence, p.Batch = field(m.Sequence), field(m.Batch)
	}
	if m := r.Method.PacketsPerBatch; m != nil {
		p.Sequence, p.PerBatch = field(m.Sequence), m.PacketsPerBatch
	}
	if r.Type == "gpu" {
		p.Executor = reorder.GPU
	}
	if r.MissingAction == "drop" {
		p.Missing = reorder.Drop
	}
	if r.DataTypes != nil {
		spec := r.DataTypes.Spec()
		p.Convert = &spec
	}
	return p
}

// DataTypes is a conversion on the way.
type DataTypes struct {
	Input      string  `cfg:"input_type"`
	Output     string  `cfg:"output_type"`
	Endianness string  `cfg:"endianness"` // host, network
	Scale      float64 `cfg:"scale"`
	Offset     float64 `cfg:"offset"`
}

// outputs are the types that values are converted to.
var outputs = []tensor.DType{tensor.F16, tensor.BF16, tensor.F32, tensor.F64, tensor.I8, tensor.I16, tensor.I32,
	tensor.U8, tensor.U16, tensor.U32, tensor.C64, tensor.C128}

// Spec is the conversion; of two samples of four bits in a byte the first is the upper one.
func (t *DataTypes) Spec() convert.Spec {
	kind, bits, _ := strings.Cut(t.Input, "int")
	n, _ := strconv.Atoi(bits)
	to, _ := tensor.ParseDType(t.Output) // checked when the file was read
	return convert.Spec{To: to, From: convert.Format{Bits: n, Unsigned: kind == "u",
		BigEndian: t.Endianness == "network" || n == 4}, Scale: t.Scale, Offset: t.Offset}
}

// ReorderMethod says how a packet's place follows from its bytes. Exactly one is set.
type ReorderMethod struct {
	BatchNumber     *SeqBatchNumber     `cfg:"seq_batch_number"`
	PacketsPerBatch *SeqPacketsPerBatch `cfg:"seq_packets_per_batch"`
}

// SeqBatchNumber: each packet has a sequence number and the number of its batch.
type SeqBatchNumber struct {
	Sequence BitField `cfg:"sequence_number"`
	Batch    BitField `cfg:"batch_number"`
}

// SeqPacketsPerBatch: each packet has a sequence number, and batches a fixed number of packets.
type SeqPacketsPerBatch struct {
	Sequence        BitField `cfg:"sequence_number"`
	PacketsPerBatch int      `cfg:"packets_per_batch"`
}

// BitField is a number in a packet, most significant bit first, counted from the packet's first
// bit.
type BitField struct {
	Offset int `cfg:"bit_offset"`
	Width  int `cfg:"bit_width"`
}

// Tx is the sending half of an interface.
type Tx struct {
	AccurateSend bool      `cfg:"accurate_send"`
	Queues       []TxQueue `cfg:"queues"`
	Flows        []Flow    `cfg:"flows"`
}

// TxQueue is a transmit queue.
type TxQueue struct {
	Name      string                     `cfg:"name"`
	ID        int                        `cfg:"id"`
	CPUCore   int                        `cfg:"cpu_core"`
	BatchSize int                        `cfg:"batch_size"`
	Depth     int                        `cfg:"depth"`
	Regions   []string                   `cfg:"memory_regions"`
	Headroom  int                        `cfg:"headroom"`
	Offloads  []string                   `cfg:"offloads"` // tx_eth_src
	Rate      Rate                       `cfg:"rate"`     // 0: no limit
	Sections  map[string]engine.Settings `cfg:"*"`        // options of engines, as of the interface
}

// Transfers makes this process a node that moves tensors and files.
type Transfers struct {
	Name               string        `cfg:"name"`
	Listen             []string      `cfg:"listen"`
	Paths              []string      `cfg:"paths"` // NAME or NAME?KEY=VALUE&...
	Budget             Size          `cfg:"budget"`
	RegistrationBudget Size          `cfg:"registration_budget"`
	Streams            int           `cfg:"streams"`
	Window             int           `cfg:"window"`
	Checksum           bool          `cfg:"checksum"`
	HeartbeatEvery     time.Duration `cfg:"heartbeat"`
	DeadAfter          time.Duration `cfg:"dead_after"`
	// Sections are the options of paths as text, by the name of the path and by key.
	Sections map[string]engine.Settings `cfg:"*"`
	Share    *Share                     `cfg:"share"`
	Peers    []Peer                     `cfg:"peers"`
}

// Share is a file or a directory that peers can fetch.
type Share struct {
	Path     string `cfg:"path"`
	Writable bool   `cfg:"writable"`
	MaxBytes Size   `cfg:"max_bytes"` // 0: as the disk allows, of which 1 GiB stays free
}

// Peer is a node to connect to.
type Peer struct {
	Name    string `cfg:"name"`
	Address string `cfg:"address"`
}

// Security says who this node is and what it takes.
type Security struct {
	Identity string `cfg:"identity"` // directory; "": the user's
	Policy   string `cfg:"policy"`   // file; "": that of the identity
	Floor    string `cfg:"floor"`    // none, host, encrypted
	Insecure bool   `cfg:"insecure"`
	AllowUID string `cfg:"allow_uid"` // user numbers, or any
}

// Registry says where nodes find each other.
type Registry struct {
	URL    string        `cfg:"url"`
	Prefix string        `cfg:"prefix"`
	TTL    time.Duration `cfg:"ttl"`
}

// Application is something to do with the packets of an interface.
type Application struct {
	Name      string  `cfg:"name"`
	Kind      string  `cfg:"kind"`      // count, echo, forward, sink
	Interface string  `cfg:"interface"` // where packets come from
	Queue     int     `cfg:"queue"`
	To        string  `cfg:"to"` // forward: the interface
	ToQueue   int     `cfg:"to_queue"`
	CPUCore   int     `cfg:"cpu_core"`
	Recording         // sink
	Tensor    *Tensor `cfg:"tensor"` // sink: what peers get
}

// Recording says into which files packets are written.
type Recording struct {
	Record    string        `cfg:"record"`    // a file; "": none
	Format    string        `cfg:"format"`    // raw, pcap, pcapng
	Filter    string        `cfg:"filter"`    // in tcpdump's language; "": none
	Rotate    *Rotate       `cfg:"rotate"`    // nil: one file
	Overwrite bool          `cfg:"overwrite"` // a file of the name
	Upload    string        `cfg:"upload"`    // of whole files, to s3://BUCKET/PREFIX; "": none
	Ring      record.Ring   `cfg:"ring"`      // what is kept in memory; zero: nothing
	After     time.Duration `cfg:"after"`     // of Ring: how long is written behind the signal
}

// ofPackets reports whether it is one whose format holds packets and no batches.
func (r *Recording) ofPackets() bool { return r.Record != "" && strings.HasPrefix(r.Format, "pcap") }

// OfPackets is how many stages stand before the reorder plan of the queue: the first ones that
// record packets.
func (q *RxQueue) OfPackets() int {
	if n := slices.IndexFunc(q.Stages, func(s Stage) bool { return s.Type != "record" || !s.ofPackets() }); n >= 0 {
		return n
	}
	return len(q.Stages)
}

// Rotate says when a file of a recording ends and the next one begins.
type Rotate struct {
	Size    Size          `cfg:"size"`    // before the file exceeds it; 0: never
	Packets int           `cfg:"packets"` // in a file; 0: no limit
	Time    time.Duration `cfg:"time"`    // at each multiple of it since midnight; 0: never
	Keep    Size          `cfg:"keep"`    // the oldest files go when all take more; 0: all stay
}

// Tensor is a tensor that payloads are placed into, for peers of the node to get.
type Tensor struct {
	Name  string `cfg:"name"`
	DType string `cfg:"dtype"`
	Shape []int  `cfg:"shape"` // rows first: one packet is one row
	// bytes of a packet before its payload; without: behind the UDP header of frames, 0 for sockets
	Offset   flow.Opt[int] `cfg:"offset"`
	Sequence *Sequence     `cfg:"sequence"`
	Strip    int           `cfg:"strip"` // bytes at the beginning of each payload that are not part of its row
	Buffers  int           `cfg:"buffers"`
	Flush    time.Duration `cfg:"flush"` // 0: only whole tensors, or when the next one begins
}

// Sequence is a number in each payload that says which row it is: the number modulo the rows.
type Sequence struct {
	Offset int `cfg:"offset"`
	Width  int `cfg:"width"` // bytes, big-endian
}

// BenchRx is one receiver of a stream benchmark.
type BenchRx struct {
	Interface     string `cfg:"interface_name"`
	Queue         int    `cfg:"queue_id"`
	CPUCore       int    `cfg:"cpu_core"`
	GPUDirect     bool   `cfg:"gpu_direct"`
	SplitBoundary Size   `cfg:"split_boundary"`
	BatchSize     int    `cfg:"batch_size"`
	MaxPacketSize Size   `cfg:"max_packet_size"`
	HeaderSize    Size   `cfg:"header_size"`
}

// BenchTx is one sender of a stream benchmark: UDP packets of one kind.
type BenchTx struct {
	Interface      string        `cfg:"interface_name"`
	Queue          int           `cfg:"queue_id"`
	CPUCore        int           `cfg:"cpu_core"`
	BatchSize      int           `cfg:"batch_size"`
	PayloadSize    Size          `cfg:"payload_size"`
	HeaderSize     Size          `cfg:"header_size"`
	GPUDirect      bool          `cfg:"gpu_direct"`
	SplitBoundary  Size          `cfg:"split_boundary"`
	EthSrc         packet.MAC    `cfg:"eth_src_addr"`
	EthDst         packet.MAC    `cfg:"eth_dst_addr"`
	IPSrc          netip.Addr    `cfg:"ip_src_addr"`
	IPDst          netip.Addr    `cfg:"ip_dst_addr"`
	UDPSrc         flow.Range    `cfg:"udp_src_port"` // cycled through, packet by packet
	UDPDst         flow.Range    `cfg:"udp_dst_port"`
	SequenceOffset flow.Opt[int] `cfg:"sequence_number_offset"` // in the payload
	SequenceStart  int           `cfg:"sequence_number_start"`
}

// BenchSocket is one end of a benchmark of sockets or RDMA connections.
type BenchSocket struct {
	Server        bool       `cfg:"server"`
	Send          bool       `cfg:"send"`
	Receive       bool       `cfg:"receive"`
	CPUCore       int        `cfg:"cpu_core"`
	Iterations    int        `cfg:"iterations"` // 0: until the time is over
	MessageSize   Size       `cfg:"message_size"`
	ServerAddress netip.Addr `cfg:"server_address"`
	ClientAddress netip.Addr `cfg:"client_address"`
	ServerPort    int        `cfg:"server_port"`
	RxDepth       int        `cfg:"rx_depth"`
	TxDepth       int        `cfg:"tx_depth"`
}

// Quantize is what the benchmark of reordering with conversion checks.
type Quantize struct {
	Input         string `cfg:"input_type"`
	Output        string `cfg:"output_type"`
	Endianness    string `cfg:"endianness"`
	VerifyBatches int    `cfg:"verify_batches"`
	VerifyChunks  int    `cfg:"verify_chunks"`
	ChunkElements int    `cfg:"chunk_elements"`
}

// BenchLatency is a benchmark of one packet at a time.
type BenchLatency struct {
	TxInterface string     `cfg:"tx_interface_name"`
	RxInterface string     `cfg:"rx_interface_name"`
	CPUCore     int        `cfg:"cpu_core"`
	PayloadSize Size       `cfg:"payload_size"`
	HeaderSize  Size       `cfg:"header_size"`
	EthDst      packet.MAC `cfg:"eth_dst_addr"`
	IPSrc       netip.Addr `cfg:"ip_src_addr"`
	IPDst       netip.Addr `cfg:"ip_dst_addr"`
	UDPSrc      flow.Range `cfg:"udp_src_port"`
	UDPDst      flow.Range `cfg:"udp_dst_port"`
	PTPDevice   string     `cfg:"ptp_device"`
}
