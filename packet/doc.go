// Package packet reads and writes packet headers in place: views, builders, checksums, the Toeplitz
// hash, a parser, tunnels. Nothing that runs per packet allocates.
//
// # Parsing
//
// [Parse] walks a frame once and leaves the offsets of its layers in a [Layers] that the caller
// reuses. Whatever the bytes are, it ends after a bounded number of steps and answers with a
// [Reason] that can be counted:
//
//	var l packet.Layers
//	for _, frame := range frames {
//		if why := packet.Parse(frame, &l); why != packet.OK {
//			dropped[why]++ // an array of packet.NumReasons counters
//			continue
//		}
//		if l.Proto == packet.ProtoUDP && l.HasPorts {
//			handle(l.DstPort, frame[l.Payload:l.End])
//		}
//	}
//
// Parse stops at the payload of TCP, UDP and ICMP. [ParseTunnel] looks on request one level into
// VXLAN, GRE and NVGRE. [ParseIP] begins at an IP header, for queues that deliver packets without
// Ethernet.
//
// # Views
//
// A view is a named byte slice that begins at its header: [Ethernet], [VLAN], [ARP], [IPv4],
// [IPv6], [UDP], [TCP], [ICMP], [ICMPv6], [ECPRI], [VXLAN], [GRE]. Ask Valid once; after that the
// getters and setters of the fixed header cannot panic, as long as the bytes do not change. All
// numbers are in host order, addresses are [net/netip.Addr] and [MAC]. A view of bytes that another
// process can change must be made on a copy of the header.
//
//	ip := packet.IPv4(frame[l.L3:])
//	if ip.Valid() && ip.ChecksumOK() {
//		ip.SetTTL(ip.TTL() - 1) // the checksum follows, incrementally
//	}
//
// # Builders
//
// [EthernetHeader], [IPv4Header], [UDPHeader] and so on hold the fields of one header. Fill writes
// it at the beginning of a slice and returns its length. A length has one meaning everywhere in
// this package:
//
//	the argument payload is the number of bytes that follow this header in the packet; the header itself is never included.
//
// So a UDP datagram of n bytes is UDPHeader.Fill(b, n) behind IPv4Header.Fill(b, packet.UDPLen+n)
// behind EthernetHeader.Fill(b). [UDPFrame] does the three (with VLAN, with IPv6, with checksums)
// in one call. Fields left zero get sane values: TTL and hop limit 64, don't-fragment set. Payload
// need not be in the same slice (header and payload may lie in different segments): [ChecksumMode]
// says who computes the checksum then.
//
// # Hashes
//
// [Toeplitz] is the hash of receive-side scaling with the results that network cards give;
// [MicrosoftKey] is the key that everybody uses. [Toeplitz.Frame] picks addresses and ports from a
// parsed frame.
//
// # Encapsulation
//
// [PushVLAN], [PopVLAN], [Encap] and [Decap] change the bytes of a frame that lies in a larger
// buffer with headroom before it.
//
// Sources: IEEE 802.3, 802.1Q; RFC 768, 791, 792, 826, 1071, 1624, 2784, 2890, 4291, 4302, 4443,
// 4861, 6864, 6935, 6946, 7348, 7637, 8200, 9293; eCPRI specification 2.0; Microsoft, "Verifying
// the RSS hash calculation".
package packet
