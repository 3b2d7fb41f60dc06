package config

import (
	"math"

	"github.com/penstock-io/penstock/tensor"
)

// flowSection is one section for both directions: a flow of tx has no queue.
func flowSection() *section {
	return &section{name: "flow", title: "a flow",
		doc: "A rule: packets that match get the actions, in their order. The highest priority wins, then the first " +
			"in the list.", keys: []key{
			{name: "name", kind: text("a name"), derived: "the place in the list", doc: "Unique in its list."},
			{name: "id", kind: integer(0, 1<<24-1), def: "0", doc: "Number that packets carry. 0 is that of packets without a flow."},
			{name: "priority", ours: true, kind: integer(math.MinInt16, math.MaxInt16), def: "0", doc: "The highest wins."},
			{name: "match", sub: matchSection(), doc: "What is asked of a packet; without it every packet is meant."},
			{name: "actions", also: []string{"action"}, sub: actionSection(), list: true, one: true, needed: true,
				doc: "Tags and tunnels to take off or put on; in `rx` one of queue, drop and kernel comes last."},
		}}
}

func matchSection() *section {
	return &section{name: "match", title: "match", doc: "All that is given must fit.", finish: finishMatch, keys: []key{
		{name: "udp_src", kind: ports(), doc: "UDP source port or range. In DAQIRI 0 means any."},
		{name: "udp_dst", kind: ports(), doc: "UDP destination port or range. In DAQIRI 0 means any."},
		{name: "tcp_src", ours: true, kind: ports(), doc: "TCP source port or range."},
		{name: "tcp_dst", ours: true, kind: ports(), doc: "TCP destination port or range."},
		{name: "ip_len", daqiri: "ipv4_len", kind: ports(), doc: "Total length in bytes of the IP packet, or a range. In DAQIRI 0 means any."},
		{name: "ip_src", daqiri: "ipv4_src", kind: ipPrefix(), doc: "Source address or block, IPv4 or IPv6."},
		{name: "ip_dst", daqiri: "ipv4_dst", kind: ipPrefix(), doc: "Destination address or block."},
		{name: "ip_proto", ours: true, kind: proto(), doc: "Protocol."},
		{name: "eth_src", ours: true, kind: macAddress(), doc: "Ethernet source."},
		{name: "eth_dst", ours: true, kind: macAddress(), doc: "Ethernet destination."},
		{name: "eth_type", ours: true, kind: hexadecimal(0, 0xffff, 4), doc: "EtherType behind all tags."},
		{name: "vlan", ours: true, kind: vlanID(), doc: "VLAN of the outer tag."},
		{name: "inner_vlan", ours: true, kind: vlanID(), doc: "VLAN of the second tag."},
		{name: "ethernet", kind: nil, old: "eth_src and eth_dst", doc: "DAQIRI: a map with `src` and `dst`."},
		{name: "flex_item_id", kind: integer(0, 65535), doc: "A flex item; with `val` and `mask`."},
		{name: "val", kind: hexadecimal(0, math.MaxUint32, 8), doc: "Bits that the flex item must have."},
		{name: "mask", kind: hexadecimal(0, math.MaxUint32, 8), doc: "Which bits count; without it all."},
		{name: "flex", ours: true, list: true, doc: "Places in the payload without a name.",
			sub: &section{name: "flex_word", title: "a flex word", doc: "32 bits behind the UDP or TCP header.",
				keys: []key{
					{name: "offset", kind: integer(0, 252), needed: true, doc: "Bytes from the beginning of the payload."},
					{name: "value", kind: hexadecimal(0, math.MaxUint32, 8), needed: true, doc: "Bits that it must have."},
					{name: "mask", kind: hexadecimal(1, math.MaxUint32, 8), def: "0xffffffff", doc: "Which bits count."},
				}}},
		{name: "ecpri", doc: "eCPRI messages (EtherType 0xAEFE).", sub: &section{name: "ecpri", title: "ecpri",
			doc:    "Fields of an eCPRI message. DAQIRI takes `pc_id` and `rtc_id` for one key, and so does this.",
			finish: finishECPRI, keys: []key{
				{name: "msg_type", kind: integer(0, 255), doc: "Type of the message."},
				{name: "pc_id", kind: integer(0, 65535), doc: "For types 0 and 1."},
				{name: "rtc_id", kind: integer(0, 65535), doc: "For type 2."},
			}}},
	}}
}

func actionSection() *section {
	return &section{name: "action", title: "an action", such: "{type: queue, id: 0} or {type: drop}", doc: "One step.",
		finish: finishAction, forms: spliceAction, formKeys: actionForms, keys: []key{
			{name: "type", kind: word("queue", "drop", "kernel", "vlan_pop", "vlan_push", "tunnel_decap",
				"tunnel_encap"),
				needed: true, doc: "`queue` delivers, `drop` counts and drops, `kernel` leaves the packet to the " +
					"kernel; the others change it."},
			{name: "id", kind: integer(0, 65535), doc: "`queue`: the receive queue."},
			{name: "ids", kind: integer(0, 65535), list: true,
				doc: "`queue`: receive queues, by the Toeplitz hash of addresses and ports (RSS); one of them is the " +
					"same as `id`."},
			{name: "vlan_id", kind: integer(0, 4095), doc: "`vlan_push`: the VLAN."},
			{name: "pcp", kind: integer(0, 7), def: "0", doc: "`vlan_push`: priority."},
			{name: "dei", kind: integer(0, 1), def: "0", doc: "`vlan_push`: drop eligible."},
			{name: "ethertype", kind: hexadecimal(0, 0xffff, 4), def: "0x8100", doc: "`vlan_push`: EtherType of the tag, 0x8100, 0x88a8 or 0x9100."},
			{name: "tunnel", sub: tunnelSection(), doc: "`tunnel_decap`, `tunnel_encap`: which."},
		}}
}

func tunnelSection() *section {
	return &section{name: "tunnel", title: "a tunnel", doc: "Outer headers. For `tunnel_decap` only the type counts.",
		keys: []key{
			{name: "type", kind: word("vxlan", "gre", "nvgre"), needed: true, doc: "VXLAN (50 bytes over IPv4), GRE (38), NVGRE (42)."},
			{name: "outer_eth_src", kind: macAddress(), doc: "Outer Ethernet source."},
			{name: "outer_eth_dst", kind: macAddress(), doc: "Outer Ethernet destination."},
			{name: "outer_ip_src", daqiri: "outer_ipv4_src", kind: ipAddress(), doc: "Outer IP source, IPv4 or IPv6."},
			{name: "outer_ip_dst", daqiri: "outer_ipv4_dst", kind: ipAddress(), doc: "Outer IP destination."},
			{name: "outer_ttl", daqiri: "outer_ipv4_ttl", kind: integer(1, 255), def: "64", doc: "Time to live."},
			{name: "outer_tos", daqiri: "outer_ipv4_tos", kind: integer(0, 255), def: "0", doc: "Type of service."},
			{name: "outer_udp_src", kind: integer(0, 65535), def: "0", doc: "VXLAN; 0: from the hash of the inner flow."},
			{name: "outer_udp_dst", kind: integer(1, 65535), def: "4789", doc: "VXLAN."},
			{name: "vni", kind: integer(0, 1<<24-1), doc: "VXLAN: the network."},
			{name: "gre_protocol", kind: hexadecimal(0, 0xffff, 4), def: "0x0800", doc: "GRE: 0x0800 and 0x86dd carry the IP packet, 0x6558 the whole frame."},
			{name: "tni", kind: integer(0, 1<<24-1), doc: "NVGRE: the subnet."},
			{name: "flow_id", kind: integer(0, 255), def: "0", doc: "NVGRE."},
		}}
}

func benchRxSection() *section {
	return &section{name: "bench_rx", title: "bench_rx", doc: "A receiver of a stream benchmark.", keys: []key{
		{name: "interface_name", kind: text("the name of an interface"), needed: true, doc: "Where packets come from."},
		{name: "queue_id", kind: integer(0, 65535), def: "0", doc: "Receive queue."},
		{name: "cpu_core", kind: core(), def: "-1", doc: "Core of the receiver."},
		{name: "gpu_direct", kind: boolean(), def: "false", doc: "DAQIRI: payload lies in GPU memory."},
		{name: "split_boundary", kind: boundary(), def: "0B",
			doc: "DAQIRI: where headers end; `true` and `false` are taken, and leave it to the regions of the queue."},
		{name: "batch_size", kind: integer(0, 1<<20), def: "0", doc: "Packets of a batch; 0: as the queue has it."},
		{name: "max_packet_size", kind: size(0, 65535), def: "0B", doc: "The largest packet; 0: as the region has room."},
		{name: "header_size", kind: size(0, 65535), def: "0B", doc: "Bytes in front of the payload; 0: by the headers of each packet."},
	}}
}

func benchTxSection() *section {
	return &section{name: "bench_tx", title: "bench_tx", doc: "A sender of a stream benchmark: UDP packets.",
		keys: []key{
			{name: "interface_name", kind: text("the name of an interface"), needed: true, doc: "Where packets leave."},
			{name: "queue_id", kind: integer(0, 65535), def: "0", doc: "Transmit queue."},
			{name: "cpu_core", kind: core(), def: "-1", doc: "Core of the sender."},
			{name: "batch_size", kind: integer(1, 1<<20), def: "256", doc: "Packets of a burst."},
			{name: "payload_size", kind: size(0, 65535), needed: true, doc: "Bytes of payload."},
			{name: "header_size", kind: size(0, 65535), def: "64B", doc: "Bytes in front of the payload."},
			{name: "gpu_direct", kind: boolean(), def: "false", doc: "DAQIRI: payload lies in GPU memory."},
			{name: "split_boundary", kind: boundary(), def: "0B",
				doc: "DAQIRI: where headers end; `true` and `false` are taken, and leave it to the regions of " +
					"the queue."},
			{name: "eth_src_addr", kind: macAddress(), doc: "Ethernet source; without it that of the interface."},
			{name: "eth_dst_addr", kind: macAddress(), needed: true, doc: "Ethernet destination."},
			{name: "ip_src_addr", kind: ipAddress(), needed: true, doc: "IP source."},
			{name: "ip_dst_addr", kind: ipAddress(), needed: true, doc: "IP destination."},
			{name: "udp_src_port", kind: ports(), needed: true, doc: "UDP source port, or a range that packets go through."},
			{name: "udp_dst_port", kind: ports(), needed: true, doc: "UDP destination port, or a range that packets go through."},
			{name: "sequence_number_offset", kind: integer(0, 65535), doc: "Place in the payload of a sequence number of 32 bits."},
			{name: "sequence_number_start", kind: integer(0, math.MaxUint32), def: "0", doc: "The first of them."},
		}}
}

func benchSocketSection() *section {
	return &section{name: "bench_socket", title: "this benchmark",
		doc: "One end of a benchmark of sockets or RDMA connections.", keys: []key{
			{name: "server", kind: boolean(), needed: true, doc: "Waits for the other end."},
			{name: "send", kind: boolean(), def: "false", doc: "Sends messages."},
			{name: "receive", kind: boolean(), def: "false", doc: "Receives messages."},
			{name: "cpu_core", kind: core(), def: "-1", doc: "Core of the program."},
			{name: "iterations", kind: integer(0, most), def: "0", doc: "Messages; 0: until the time is over."},
			{name: "message_size", kind: size(1, 1<<40), needed: true, doc: "Bytes of a message."},
			{name: "server_address", kind: ipAddress(), needed: true, doc: "Address of the server."},
			{name: "client_address", kind: ipAddress(), doc: "Address of the client."},
			{name: "server_port", kind: integer(1, 65535), needed: true, doc: "Port of the server."},
			{name: "rx_depth", kind: integer(0, 65535), def: "0", doc: "RDMA: receives that are posted."},
			{name: "tx_depth", kind: integer(0, 65535), def: "0", doc: "RDMA: sends under way."},
		}}
}

func quantizeSection() *section {
	return &section{name: "bench_reorder_quantize", title: "bench_reorder_quantize",
		doc: "What a benchmark of reordering with conversion checks.", keys: []key{
			{name: "input_type", kind: loose(word("int4", "int8", "int16", "int32", "i8=int8", "i16=int16",
				"i32=int32")), needed: true, doc: "Type in the packets."},
			{name: "output_type", kind: element(tensor.F16, tensor.BF16, tensor.F32, tensor.F64, tensor.I32, tensor.I8),
				needed: true,
				doc:    "Type in memory."},
			{name: "endianness", kind: word("host", "network"), def: "host", doc: "Order of bytes in the packets."},
			{name: "verify_batches", kind: integer(0, most), def: "0", doc: "Batches to check."},
			{name: "verify_chunks", kind: integer(0, most), def: "0", doc: "Pieces of each to check."},
			{name: "chunk_elements", kind: integer(0, most), def: "0", doc: "Values of a piece."},
		}}
}

func latencySection() *section {
	return &section{name: "bench_latency", title: "bench_latency", open: true,
		doc: "A benchmark of one packet at a time. Other keys are DAQIRI's program's own.", keys: []key{
			{name: "tx_interface_name", kind: text("the name of an interface"), doc: "Where packets leave."},
			{name: "rx_interface_name", kind: text("the name of an interface"), doc: "Where they come back."},
			{name: "cpu_core", kind: core(), def: "-1", doc: "Core of the program."},
			{name: "payload_size", kind: size(0, 65535), def: "0B", doc: "Bytes of payload."},
			{name: "header_size", kind: size(0, 65535), def: "64B", doc: "Bytes in front of it."},
			{name: "eth_dst_addr", kind: macAddress(), doc: "Ethernet destination."},
			{name: "ip_src_addr", kind: ipAddress(), doc: "IP source."},
			{name: "ip_dst_addr", kind: ipAddress(), doc: "IP destination."},
			{name: "udp_src_port", kind: ports(), def: "4096", doc: "UDP source port."},
			{name: "udp_dst_port", kind: ports(), def: "4096", doc: "UDP destination port."},
			{name: "ptp_device", kind: text("a device such as /dev/ptp0"), doc: "Clock of the network card."},
		}}
}
