package config

import (
	"math"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
)

const (
	most   = math.MaxInt32
	anyMem = Size(1) << 40
)

func rootSection() *section {
	flow, rotate, bench := flowSection(), rotateSection(), benchSocketSection()
	return &section{name: "root", title: "the configuration",
		doc: "The configuration: everything below `penstock:`, or below `daqiri:` and `cfg:`.", finish: finishRoot,
		keys: []key{
			{name: "version", kind: integer(1, 1), def: "1", doc: "Version of the schema. There is only 1."},
			{name: "master_core", kind: core(), def: "-1",
				doc: "Core for starting up, so also the one whose NUMA node memory comes from unless it says " +
					"another; -1 for any."},
			{name: "stream_type", kind: word("raw", "socket", "pcie"),
				old: "the engine and the address of each interface",
				doc: "DAQIRI: what kind of stream all interfaces carry."},
			{name: "engine", kind: engineWord(), def: "auto",
				doc: "Engine of the interfaces that name none. `auto` chooses by the address; see [engines](#engines)."},
			{name: "gpu_runtime", ours: true, kind: word("auto", "cuda", "opencl", "host"), def: "auto",
				doc: "What memory of the kinds `device` and `host_pinned` is of. `auto`: CUDA, or else OpenCL where " +
					"it has a device on the bus. `host` is this process as a device: for trying a file on a machine " +
					"without a GPU."},
			{name: "log_level", kind: word("trace", "debug", "info", "warn", "error", "critical", "off"),
				old: "logging: {level: ...}", doc: "DAQIRI: how much is logged."},
			{name: "loopback", kind: word("", "sw", "hw"),
				old: "an interface with engine: sim and address: sim://NAME?loop",
				doc: "DAQIRI: `sw` is the engine sim with a port looped to itself; `hw` is a loop inside an " +
					"NVIDIA card."},
			{name: "debug", kind: boolean(), old: "logging: {level: debug}", idle: "the log level says how much is logged", doc: "DAQIRI: more messages."},
			{name: "tx_meta_buffers", kind: integer(0, most), old: "nothing",
				idle: "bursts are the application's own and never run out", doc: "DAQIRI: number of burst objects."},
			{name: "rx_meta_buffers", kind: integer(0, most), old: "nothing",
				idle: "bursts are the application's own and never run out", doc: "DAQIRI: number of burst objects."},
			{name: "manager", gone: "it was removed: engine chooses the engine"},
			{name: "protocol", gone: "it was removed: the protocol is in the addresses, such as udp://10.0.0.1:5000"},
			{name: "rdma_config", gone: "it was removed: socket_config and roce_config of the interface have its settings"},
			{name: "logging", ours: true, sub: loggingSection(), doc: "What is logged, and where."},
			{name: "metrics", ours: true, sub: metricsSection(), doc: "Where counts can be read by Prometheus."},
			{name: "memory_regions", sub: regionSection(), list: true, doc: "Memory for packets."},
			{name: "interfaces", sub: interfaceSection(flow, rotate), list: true, doc: "Ports, each of one engine."},
			{name: "transfers", ours: true, sub: transfersSection(), doc: "Makes the process a node for transfers of tensors and files."},
			{name: "security", ours: true, sub: securitySection(), doc: "Who this node is, and what it takes from others."},
			{name: "registry", ours: true, sub: registrySection(), doc: "Where nodes find each other."},
			{name: "applications", ours: true, sub: applicationSection(rotate), list: true,
				doc: "What takes the packets of receive queues, in `penstock run` and in a program that opens the file."},

			{name: "bench_rx", beside: true, sub: benchRxSection(), list: true, one: true, doc: "Receivers of `penstock bench stream`."},
			{name: "bench_tx", beside: true, sub: benchTxSection(), list: true, one: true, doc: "Senders of `penstock bench stream`."},
			{name: "socket_bench_server", beside: true, sub: bench, doc: "The server of a benchmark of sockets."},
			{name: "socket_bench_client", beside: true, sub: bench, doc: "The client of a benchmark of sockets."},
			{name: "rdma_bench_server", beside: true, sub: bench, doc: "The server of a benchmark of RDMA connections."},
			{name: "rdma_bench_client", beside: true, sub: bench, doc: "The client of a benchmark of RDMA connections."},
			{name: "bench_reorder_quantize", beside: true, sub: quantizeSection(), doc: "What a benchmark of reordering with conversion checks."},
			{name: "bench_latency", beside: true, sub: latencySection(), doc: "A benchmark of one packet at a time."},
		}}
}

func loggingSection() *section {
	return &section{name: "logging", title: "logging", doc: "What the program says of itself.", keys: []key{
		{name: "level", kind: word("trace", "debug", "info", "warn", "error", "critical", "off"), def: "warn",
			doc: "The least important messages that are written."},
		{name: "format", kind: word("text", "json"), def: "text", doc: "How they are written."},
		{name: "file", kind: text("a file"), doc: "Where they go; without it to the standard error."},
	}}
}

func metricsSection() *section {
	return &section{name: "metrics", title: "metrics", doc: "A page for Prometheus.", keys: []key{
		{name: "listen", kind: text("a host and a port such as 127.0.0.1:9095"), needed: true, doc: "Host and port of `http://.../metrics`."},
	}}
}

func regionSection() *section {
	return &section{name: "region", title: "a memory region",
		doc:    "Memory for packets: `num_bufs` slots of `buf_size` bytes, one packet or segment in each.",
		finish: finishRegion, keys: []key{
			{name: "name", kind: text("a name"), needed: true, doc: "Unique; queues name it."},
			{name: "kind", kind: word("host", "huge", "host_pinned", "device"), needed: true,
				doc: "`host`: pages of 4 KiB; `huge`: huge pages; `host_pinned`: host memory that a GPU reaches; " +
					"`device`: memory of a GPU, which engines reach by a copy. See [docs/gpu.md](gpu.md)."},
			{name: "affinity", kind: integer(0, 65535), old: "numa (host, huge) or gpu (host_pinned, device)",
				doc: "DAQIRI: NUMA node of host and huge memory, GPU of the other kinds."},
			{name: "numa", ours: true, kind: integer(-1, 1023), def: "-1", doc: "NUMA node that the pages are bound to; -1 leaves it to the kernel."},
			{name: "gpu", ours: true, kind: integer(0, 1023), def: "0",
				doc: "Number of the GPU in its runtime (`gpu_runtime`), for `host_pinned` and `device`."},
			{name: "access", kind: word("local", "rdma_write", "rdma_read"), list: true, uniq: true, def: "local",
				doc: "What remote peers may do over RDMA. Only `local`: no peer reads or writes the memory of " +
					"streams, and a file that asks for `rdma_write` or `rdma_read` is not opened. Transfers export " +
					"memory by name."},
			{name: "num_bufs", kind: integer(1, most), needed: true, doc: "Number of slots."},
			{name: "buf_size", kind: size(1, anyMem), needed: true, doc: "Bytes of a slot that packets can use."},
			{name: "align", ours: true, kind: size(1, 1<<30), def: "64B",
				doc: "Alignment of slots, a power of two. The distance of slots is `buf_size` rounded up to it."},
			{name: "page_size", ours: true, kind: size(2<<20, 1<<30), def: "2MiB", doc: "Pages of `huge` memory: 2MiB or 1GiB."},
			{name: "fallback", ours: true, kind: boolean(), def: "false", doc: "Takes pages of 4 KiB where huge pages are missing, and says so."},
			{name: "owned", kind: boolean(), def: "true", doc: "`false`: the program gives the memory when it opens the configuration."},
		}}
}

func interfaceSection(flow, rotate *section) *section {
	return &section{name: "interface", title: "an interface",
		doc:    "A port: its engine, its address, and the queues that packets come to and leave by.",
		finish: finishInterface, keys: append([]key{
			{name: "name", kind: text("a name"), needed: true, doc: "Unique; applications name it."},
			{name: "engine", ours: true, kind: engineWord(), def: "auto", derived: "the address", doc: "Who brings the packets; see [engines](#engines)."},
			{name: "address", kind: text("an address"), derived: "socket",
				doc: "Name of a network interface (`eth0`), PCI address (`0000:01:00.0`), `udp://` or `tcp://` URL, or `sim://NAME?loop`; options of the engine may stand behind it. With `mode` in the section socket it may be left out."},
			{name: "mtu", ours: true, kind: integer(0, 1<<20), def: "0", doc: "The largest packet in bytes from its IP header on; 0 leaves the device's."},
			{name: "reopen", ours: true, kind: boolean(), def: "false",
				doc: "Opens the interface again when it was removed, or its device has failed, and is back: queues, " +
					"flows and counts go on. Otherwise the run ends with an error. It is for afpacket, xdp and " +
					"verbs; docs/run.md says more."},
			{name: "socket", daqiri: "socket_config", sub: socketSection(), doc: "For sockets and RDMA connections."},
		}, append(engineSections(engine.OfPort), []key{
			{name: "rx", sub: rxSection(flow, rotate), doc: "Receiving."},
			{name: "tx", sub: txSection(flow), doc: "Sending."},
		}...)...)}
}

func socketSection() *section {
	mode := word("client", "server")
	return &section{name: "socket", title: "socket",
		doc: "How the other side is reached, for `udp://`, `tcp://` and `roce://`.", finish: finishSocket,
		engines: true, keys: append([]key{
			{name: "mode", kind: mode, doc: "A server waits for clients. Without it `address` says where the other side is, and the section has options only."},
			{name: "local", daqiri: "local_addr", kind: endpoint(), doc: "Address here, such as `udp://10.0.0.1:5000`. A server needs it, with a port."},
			{name: "remote", daqiri: "remote_addr", kind: endpoint(), doc: "Address of the server, for clients over UDP and TCP."},
			{name: "local_ip", kind: ipAddress(), old: "local", doc: "DAQIRI, older: the address of `local_addr` (UDP)."},
			{name: "local_port", kind: integer(1, 65535), old: "local", doc: "DAQIRI, older: the port of `local_addr`."},
			{name: "remote_ip", kind: ipAddress(), old: "remote", doc: "DAQIRI, older: the address of `remote_addr` (UDP)."},
			{name: "remote_port", kind: integer(1, 65535), old: "remote", doc: "DAQIRI, older: the port of `remote_addr`."},
			{name: "max_burst_interval_ms", kind: integer(0, most), old: "nothing",
				idle: "DAQIRI does not use it either; the rate of a transmit queue limits what is sent",
				doc:  "DAQIRI: read and never used."},
			{name: "min_ipg_ns", kind: integer(0, math.MaxUint32), old: "rate of the transmit queue",
				idle: "DAQIRI does not use it either; the rate of a transmit queue limits what is sent",
				doc:  "DAQIRI: read and never used."},
		}, optionKeys(engine.OfPort, socketSectionName)...)}
}

func rxSection(flow, rotate *section) *section {
	return &section{name: "rx", title: "rx", doc: "The receiving half of an interface.", keys: []key{
		{name: "flow_isolation", kind: boolean(), def: "false",
			doc: "`true`: only packets that a flow matches come here, the rest stays with the kernel. `false`: " +
				"everything comes, and what no flow matches goes to the first queue."},
		{name: "take_over", ours: true, kind: boolean(), def: "false",
			doc: "`true`: everything that the interface receives may come here although the default route of this " +
				"machine leads over it, which cuts the machine off. Without it, and without `flow_isolation`, " +
				"engines that take packets from the kernel (xdp, verbs, dpdk) refuse such an interface."},
		{name: "hardware_timestamps", kind: boolean(), def: "false",
			doc: "Times of reception by the network card. DAQIRI's parser ignores it; here it counts."},
		{name: "timestamps", ours: true, kind: boolean(), def: "false", doc: "Times of reception by the kernel."},
		{name: "dynamic_flow_capacity", kind: integer(0, most), def: "0",
			doc: "DAQIRI: room for flows that are added later. Tables of flows grow by themselves here."},
		{name: "queues", sub: rxQueueSection(rotate), list: true, doc: "Receive queues."},
		{name: "flex_items", sub: flexItemSection(), list: true, doc: "Named places in UDP payloads, for flows."},
		{name: "flows", sub: flow, list: true, doc: "Which packet goes to which queue."},
		{name: "reorder", daqiri: "reorder_configs", sub: reorderSection(), list: true, doc: "Batches of packets in the order of their sequence numbers."},
	}}
}

func rxQueueSection(rotate *section) *section {
	return &section{name: "rx_queue", title: "a receive queue",
		doc: "A receive queue. It has one owner, which polls it.", keys: append([]key{
			{name: "name", kind: text("a name"), derived: "the interface and the id", doc: "For messages and statistics."},
			{name: "id", kind: integer(0, 65535), derived: "the place in the list", doc: "Flows name it."},
			{name: "poll_mode", kind: word("indirect", "event", "adaptive", "busy", "direct"), def: "indirect",
				doc: "Who polls. A poller that hands bursts over: `event` sleeps until the queue wakes it, " +
					"`adaptive` looks again for a while before it sleeps, `busy` never sleeps and keeps a processor " +
					"for itself, `indirect` is `adaptive` with a `cpu_core` and `event` without. Or the application, " +
					"in its own goroutine: `direct`; then there is no `cpu_core`."},
			{name: "cpu_core", kind: core(), def: "-1",
				doc: "Core of the poller, which serves all queues with this core; -1 leaves it to the system, with a " +
					"poller for each queue."},
			{name: "batch_size", kind: integer(1, 1<<20), def: "256", doc: "Packets of a burst at most."},
			{name: "depth", ours: true, kind: integer(1, 1<<20), derived: "1024, or the slots there are",
				doc: "Packets that wait for the application, at least; the ring."},
			{name: "memory_regions", kind: text("the name of a memory region"), list: true,
				doc: "One region for whole packets, or two: headers into the first, payload into the second. RDMA " +
					"connections need none; afpacket and dpdk without one lend the memory of the device, so that " +
					"nothing " +
					"is copied, and stop where it is not released soon."},
			{name: "split_at", ours: true, kind: integer(0, 65535), derived: "with two regions, buf_size of the first",
				doc: "Length of the header segment in bytes with two regions."},
			{name: "timeout", daqiri: "timeout_us", kind: span(0, 3600e9, 1e3), def: "0s",
				doc: "How long a burst that is not full waits for more. DAQIRI waits for ever with 0; here 0 does " +
					"not wait."},
			{name: "stages", ours: true, list: true,
				doc: "What packets pass between the queue and the application, in this order. The poller runs them, " +
					"or the application's goroutine. A `reorder` plan stands before them, but behind the first ones " +
					"that record packets (`pcapng`, `pcap`).",
				sub: &section{name: "stage", title: "a stage", doc: "A stage of a receive queue; see docs/run.md.",
					keys: append([]key{
						{name: "type", ours: true, kind: text("a name of a stage"), needed: true,
							doc: "`checksum`, `feed`, `record`, or a stage that the program adds " +
								"(`system.Options.Stages`). " +
								"Options are behind it as in an address: `checksum?all`."},
					}, recordKeys("`record`: ", rotate)...)}},
		}, engineSections(engine.OfRx)...)}
}

func flexItemSection() *section {
	return &section{name: "flex_item", title: "a flex item", doc: "A named place of 32 bits in UDP payloads.",
		keys: []key{
			{name: "name", kind: text("a name"), needed: true, doc: "Unique."},
			{name: "id", kind: integer(0, 65535), needed: true, doc: "Unique; flows name it."},
			{name: "udp_dst_port", kind: integer(0, 65535), def: "0", doc: "Only for packets to this port; 0 for any."},
			{name: "offset", kind: integer(0, 252), needed: true,
				doc: "Bytes from the beginning of the UDP payload. Network cards take multiples of 4 up to 28."},
		}}
}

func reorderSection() *section {
	field := func(name string) *section {
		return &section{name: name, title: "a field of bits",
			doc: "A number in each packet, most significant bit first.", keys: []key{
				{name: "bit_offset", kind: integer(0, 1<<20), needed: true, doc: "From the first bit of the packet; bit 0 is the top bit of byte 0."},
				{name: "bit_width", kind: integer(1, 32), needed: true,
					doc: "Its length. Of a counter of 64 bits take the low 32: `bit_offset` is 8 * (its byte + 4)."},
			}}
	}
	bits := field("bit_field")
	return &section{name: "reorder", title: "a reorder plan",
		doc: "Puts the payloads of flows into batches, each at the place that its sequence number says.", keys: []key{
			{name: "name", kind: text("a name"), needed: true, doc: "Unique."},
			{name: "reorder_engine", kind: word("sw", "hw"), def: "sw", doc: "Software, or an NVIDIA card."},
			{name: "cyclic_sequence", kind: boolean(), def: "false", doc: "The numbers begin again at 0; needed for `hw`."},
			{name: "missing_action", kind: word("passthrough", "drop"), def: "passthrough",
				doc: "Batches with gaps are delivered with a map of what is there, or dropped."},
			{name: "packet_size", kind: size(0, 65535), def: "0B", doc: "For `hw`: bytes of each packet."},
			{name: "reorder_type", kind: word("cpu", "gpu"), needed: true, doc: "Who moves the bytes."},
			{name: "memory_region", kind: text("the name of a memory region"), needed: true,
				doc: "Where batches go, one in each slot: its `buf_size` is `payload_size` after conversion, times " +
					"the packets of a batch."},
			{name: "payload_byte_offset", kind: integer(0, 65535), needed: true, doc: "Bytes at the beginning of each packet that are left out."},
			{name: "payload_size", kind: size(0, 1<<30), def: "0B",
				doc: "Bytes of the payload of a packet, before conversion: what a batch has room for. Shorter " +
					"payloads are filled up with zeros, longer ones dropped. 0: the longest first payload of a batch " +
					"so far, so that batches may differ, and a stream that begins with a short packet loses its " +
					"first batch."},
			{name: "window", kind: integer(0, reorder.MaxWindow), def: "0",
				doc: "Batches that may be open at a time: one leaves, whole or not, when a packet comes that is so " +
					"many batches later. Packets that overtake each other by more need a larger one. 0: 4, or as " +
					"many as the numbers of packets tell apart."},
			{name: "channels", kind: integer(0, 65536), def: "0",
				doc: "Channels in each payload, one behind the other; the batch has all samples of the first " +
					"channel, then those of the next. 0: the batch has the payloads as they are."},
			{name: "flow_ids", kind: integer(0, 1<<24-1), list: true, uniq: true, needed: true,
				doc: "The flows whose packets are meant; 0 for packets without a flow. Where they come by several " +
					"queues, batches leave by the first of these."},
			{name: "data_types", doc: "Conversion of the values.",
				sub: &section{name: "data_types", title: "data_types", doc: "Converts values on the way.", keys: []key{
					{name: "input_type", also: []string{"input"},
						kind: loose(word("int4", "int8", "int12", "int14", "int16", "int32",
							"uint4", "uint8", "uint12", "uint14", "uint16", "uint32", "i8=int8", "i16=int16",
							"i32=int32",
							"u8=uint8", "u16=uint16", "u32=uint32")), needed: true,
						doc: "Type in the packets. Samples of 4, 12 and 14 bits are packed."},
					{name: "output_type", also: []string{"output"},
						kind: element(outputs...), needed: true,
						doc: "Type in memory, by any usual name: f16, fp16, float16. The complex ones take pairs of " +
							"samples, I and Q."},
					{name: "endianness", also: []string{"input_endianness"}, kind: word("host", "network"), def: "host",
						doc: "Order of the bytes in the packets, and of samples of 12 and 14 bits in theirs."},
					{name: "scale", kind: factor(), def: "1", doc: "Each value is sample * scale + offset."},
					{name: "offset", kind: real(), def: "0", doc: "See scale."},
				}}},
			{name: "method", needed: true, doc: "How the place follows from a packet.",
				sub: &section{name: "reorder_method", title: "method", doc: "Exactly one of the two.",
					finish: finishMethod, keys: []key{
						{name: "seq_batch_number", doc: "A sequence number and the number of the batch.",
							sub: &section{name: "seq_batch_number", title: "seq_batch_number",
								doc: "Packets of a batch: 2 to the width of the sequence number, divided by 2 to " +
									"that of " +
									"the batch " +
									"number.", keys: []key{
									{name: "sequence_number", sub: bits, needed: true, doc: "The sequence number."},
									{name: "batch_number", sub: bits, needed: true, doc: "The number of the batch, of 2 bits or more."},
								}}},
						{name: "seq_packets_per_batch", doc: "A sequence number, and a fixed number of packets.",
							sub: &section{name: "seq_packets_per_batch", title: "seq_packets_per_batch",
								doc: "Batches of a fixed number of packets.", keys: []key{
									{name: "sequence_number", sub: bits, needed: true,
										doc: "The sequence number, of 2 bits or more. A packet that is half of all " +
											"numbers late or more is taken for a later one."},
									{name: "packets_per_batch", kind: integer(1, 1<<24), needed: true,
										doc: "Must divide 2 to the width of the sequence number."},
								}}},
					}}},
		}}
}

func txSection(flow *section) *section {
	return &section{name: "tx", title: "tx", doc: "The sending half of an interface.", keys: []key{
		{name: "accurate_send", kind: boolean(), def: "false", doc: "Packets carry times and leave no earlier."},
		{name: "queues", sub: txQueueSection(), list: true, doc: "Transmit queues."},
		{name: "flows", sub: flow, list: true, doc: "What is done to packets on their way out: tags and tunnels."},
	}}
}

func txQueueSection() *section {
	return &section{name: "tx_queue", title: "a transmit queue", doc: "A transmit queue. Any goroutine may send on it.",
		keys: append([]key{
			{name: "name", kind: text("a name"), derived: "the interface and the id", doc: "For messages and statistics."},
			{name: "id", kind: integer(0, 65535), derived: "the place in the list", doc: "Its number."},
			{name: "poll_mode", kind: word("indirect", "direct"), old: "nothing",
				idle: "the goroutine that calls Send sends: there is no worker that polls",
				doc:  "DAQIRI: what polls the queue."},
			{name: "cpu_core", kind: core(), def: "-1", doc: "DAQIRI: core of its worker. Here the goroutine that calls Send sends."},
			{name: "batch_size", kind: integer(1, 1<<20), def: "256",
				doc: "Packets of a burst at most that applications and benchmarks of the file send; a program that " +
					"calls Send decides itself."},
			{name: "depth", ours: true, kind: integer(1, 1<<20), derived: "1024, or the slots there are",
				doc: "Descriptors: packets that are taken and not yet sent."},
			{name: "memory_regions", kind: text("the name of a memory region"), list: true,
				doc: "One region for whole packets, or two for headers and payload."},
			{name: "headroom", ours: true, kind: integer(0, 65535), def: "0", doc: "Bytes in front of each packet for headers that are added."},
			{name: "offloads", kind: word("tx_eth_src"), list: true, uniq: true,
				doc: "`tx_eth_src`: the queue writes the interface's own address into each frame."},
			{name: "rate", daqiri: "pacing_mbps", kind: rate(10e12, 1e6), def: "0bps", doc: "Limit of the queue; 0 for none."},
			{name: "timeout_us", kind: integer(0, most), old: "nothing",
				idle: "packets leave when they are sent; DAQIRI does not use it either",
				doc:  "DAQIRI: read and never used."},
		}, engineSections(engine.OfTx)...)}
}

func transfersSection() *section {
	return &section{name: "transfers", title: "transfers",
		doc: "A node for transfers of tensors and files; see docs/protocol.md.", keys: append([]key{
			{name: "name", kind: text("a name"), doc: "For reports; without it the program's name."},
			{name: "listen", kind: text("an address such as tcp://127.0.0.1:7070 or unix:///run/node.sock"), list: true,
				doc: "Where peers reach it. Beyond this machine it needs an identity (security)."},
			pathsKey(),
			{name: "budget", kind: size(1<<20, anyMem), def: "1GiB", doc: "Memory that tensors of peers may take."},
			{name: "registration_budget", kind: size(1<<20, anyMem), def: "64GiB", doc: "Local memory that is kept ready for transfers."},
			{name: "streams", kind: integer(0, 64), def: "0", doc: "Data connections of a path over the network; 0 leaves it to the path."},
			{name: "window", kind: integer(0, 65535), def: "0", doc: "Operations under way on a path, 2 or more; 0 leaves it to the path."},
			{name: "checksum", kind: boolean(), def: "true", doc: "Checks payloads where the path does not."},
			{name: "heartbeat", kind: span(1e6, 3600e9, 0), def: "500ms", doc: "Pause between signs of life."},
			{name: "dead_after", kind: span(1e6, 3600e9, 0), def: "1500ms",
				doc: "Silence after which a peer is given up; longer where round trips are long, a minute at most."},
			{name: "share", doc: "Files for peers.", sub: &section{name: "share", title: "share",
				doc: "A file or directory that peers can fetch.", keys: []key{
					{name: "path", kind: text("a file or a directory"), needed: true, doc: "What is shared."},
					{name: "writable", kind: boolean(), def: "false", doc: "Peers may also upload files there."},
					{name: "max_bytes", kind: size(0, 1<<60), def: "0B", doc: "How much they may leave; 0: as the disk allows, of which 1 GiB stays free."},
				}}},
			{name: "peers", list: true, doc: "Nodes to connect to.",
				sub: &section{name: "peer", title: "a peer", doc: "A node to connect to.", keys: []key{
					{name: "name", kind: text("a name"), needed: true, doc: "Unique."},
					{name: "address", kind: text("an address such as tcp://10.0.0.2:7070"), needed: true, doc: "Where it listens."},
				}}},
		}, pathSections()...)}
}

func securitySection() *section {
	return &section{name: "security", title: "security", doc: "See docs/security.md.", keys: []key{
		{name: "identity", kind: text("a directory"),
			doc: "Directory of the identity; without it the user's own (`penstock pair`). Without the section there " +
				"is none: `security: {}` uses the user's own."},
		{name: "policy", kind: text("a file"), doc: "Rules by name of certificate; without it those of the identity, and without these no peer has rights."},
		{name: "floor", kind: word("none", "host", "encrypted"), def: "none", doc: "The least that any transfer takes."},
		{name: "insecure", kind: boolean(), def: "false",
			doc: "Permits addresses beyond this machine without an identity. Whoever is on the way can read and " +
				"change everything."},
		{name: "allow_uid", kind: text("user numbers such as \"1000,1001\", or any"),
			doc: "Other users of this machine whose processes may connect without TLS. Without it " +
				"the user of this process alone."},
	}}
}

func registrySection() *section {
	return &section{name: "registry", title: "registry", doc: "Where nodes find each other.", keys: []key{
		{name: "url", kind: text("a URL such as etcd://10.0.0.1:2379, file:///shared/nodes or p2p://"), needed: true, doc: "`etcd://`, `file://` or `p2p://`."},
		{name: "prefix", kind: text("a prefix of keys"), def: "/penstock", doc: "Keeps several fleets apart."},
		{name: "ttl", kind: span(1e9, 86400e9, 0), def: "10s", doc: "How long an entry outlives its node."},
	}}
}

func applicationSection(rotate *section) *section {
	return &section{name: "application", title: "an application", doc: "Something to do with the packets of a queue.",
		keys: append([]key{
			{name: "name", kind: text("a name"), derived: "kind and interface", doc: "For messages and statistics."},
			{name: "kind", kind: word("count", "echo", "forward", "sink"), added: true, needed: true,
				doc: "`count`: counts and releases; `echo`: sends back where it came from; `forward`: sends out of " +
					"another interface; `sink`: takes everything, into files (`record`), a tensor, or nowhere."},
			{name: "interface", kind: text("the name of an interface"), needed: true, doc: "Where packets come from."},
			{name: "queue", kind: integer(0, 65535), def: "0", doc: "Receive queue."},
			{name: "to", kind: text("the name of an interface"), doc: "`forward`: where they leave; `echo` uses its own interface."},
			{name: "to_queue", kind: integer(0, 65535), def: "0", doc: "Transmit queue."},
			{name: "cpu_core", kind: core(), def: "-1", doc: "Core of the application."},
			{name: "tensor", sub: tensorSection(), doc: "`sink`: puts payloads in their place in a tensor that peers get; needs `transfers`. See docs/run.md."},
		}, recordKeys("`sink`: ", rotate)...)}
}

// recordKeys are those of a recording.
func recordKeys(of string, rotate *section) []key {
	return []key{
		{name: "record", kind: text("a file"), doc: of + "the file to write, such as `capture-%Y%m%d-%H%M%S.pcapng`. See docs/record.md."},
		{name: "format", kind: word("pcapng", "pcap", "raw", "npy", "safetensors"), def: "pcapng",
			doc: "Its format. `npy` and `safetensors` take batches of `reorder`."},
		{name: "filter", kind: text("a filter in the language of tcpdump"),
			doc: "Only matching packets are in the file, such as `udp port 4791`. Needs libpcap."},
		{name: "rotate", sub: rotate, doc: "When the file ends and the next one begins. Without it there is one file."},
		{name: "overwrite", kind: boolean(), def: "false", doc: "Replace a file that has the name."},
		{name: "upload", kind: text("a place such as s3://BUCKET/PREFIX"), doc: "Where whole files are uploaded to."},
		{name: "ring", kind: ring(), def: "0s", doc: "Keep the last packets in memory, and write them at a signal " +
			"(SIGUSR1) or when the first one is lost: those of a time (in 1GiB at most), or a size. 0s: write all " +
			"packets."},
		{name: "after", kind: span(0, 86400e9, 0), def: "1s", doc: "With `ring`: how long to go on writing then."},
	}
}

func rotateSection() *section {
	return &section{name: "rotate", title: "the rotation of files", doc: "A recording in several files.", keys: []key{
		{name: "size", kind: size(0, 1<<60), def: "0B", doc: "A file ends before it exceeds this size, at least 64KiB; 0B: never."},
		{name: "packets", kind: integer(0, 1<<53), def: "0", doc: "A file ends behind so many packets; 0: never."},
		{name: "time", kind: span(0, 86400e9, 0), def: "0s", doc: "A file ends at each multiple of this time since midnight; 0s: never."},
		{name: "keep", kind: size(0, 1<<60), def: "0B", doc: "What all files may take, those of earlier runs included; the oldest go first. 0B: all stay."},
	}}
}

func tensorSection() *section {
	return &section{name: "tensor", title: "a tensor",
		doc: "A tensor of the node that is made of payloads, again and again. Peers get the last one that is whole " +
			"(`penstock get`).", keys: []key{
			{name: "name", kind: text("a name"), needed: true, doc: "What peers ask for; unique."},
			{name: "dtype", kind: element(tensor.DTypes()...), needed: true,
				doc: "Type of the elements, by any usual name: f16, fp16, float16. Bytes stay as they come."},
			{name: "shape", kind: integer(1, 1<<32), list: true, needed: true,
				doc: "Rows first, such as `[1024, 2048]`: one packet is one row. Byte streams fill the tensor from " +
					"its beginning."},
			{name: "offset", kind: integer(0, 65535),
				doc: "Bytes at the beginning of each packet that are left out. Without it the payload of UDP is " +
					"taken from frames, and everything from sockets."},
			{name: "sequence", sub: &section{name: "sequence", title: "sequence",
				doc: "A number in each payload that says which row it is: the remainder of its division by the rows. " +
					"Without it rows come in their order.", keys: []key{
					{name: "offset", kind: integer(0, 65535), needed: true, doc: "Its first byte in the payload."},
					{name: "width", kind: integer(1, 8), def: "4", doc: "Its bytes, the most significant first."},
				}}, doc: "Which row a packet is."},
			{name: "strip", kind: integer(0, 1<<16), def: "0",
				doc: "Bytes at the beginning of each payload that do not go into the tensor, such as a header with " +
					"the sequence number. Its offset counts from the beginning of the payload, before anything is " +
					"stripped."},
			{name: "buffers", kind: integer(2, 64), def: "3",
				doc: "Tensors in memory: one that is filled, the one that peers get, and those that peers may " +
					"still read."},
			{name: "flush", kind: span(0, 3600e9, 0), def: "0s",
				doc: "How long after its first row a tensor is published although rows are missing; 0: when the next " +
					"one begins."},
		}}
}
