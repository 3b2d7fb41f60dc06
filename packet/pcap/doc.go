// Package pcap appends the records of capture files to a buffer: of pcapng, and of pcap with
// nanoseconds. It does no I/O, and allocates only to grow the buffer. A file is a header, then
// packets; one of pcapng ends with statistics.
//
// # The pcapng files
//
// The format is draft-ietf-opsawg-pcapng. What this package writes, tshark, tcpdump and gopacket
// read alike: one section of unknown length with one interface, since libpcap reads no file whose
// interfaces differ in link type or snap length (sf-pcapng.c); times in nanoseconds; no custom
// blocks, which tshark counts as frames; one block of statistics, since Wireshark shows the drops
// of an interface only if it has exactly one.
//
// # The pcap files
//
// Each has the magic number for nanoseconds, 0xa1b23c4d, and no place for directions, drops and
// statistics.
package pcap
