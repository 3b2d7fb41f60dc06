// Package pcapread reads the packets of capture files, pcap and pcapng, and merges those of several
// files by time. It opens no files. Packages packet/pcap and stage/record write such files.
//
//	r, err := pcapread.Open("a.pcapng", file)
//	p, err := r.Next() // until io.EOF
//
// The parsing is that of gopacket/pcapgo. Around it, this package bounds the length of blocks and
// of packets and the number of interfaces, and hides from the parser the blocks that it would keep:
// names and secrets. So the memory that a file takes does not depend on the length of the file.
// Times in powers of two, which the parser reads wrongly, are an error.
package pcapread
