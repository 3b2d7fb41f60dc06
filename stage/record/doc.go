// Package record writes packets of bursts to capture files, and rotates, names and removes the
// files. It copies each packet once, into a chunk of a file; a goroutine of its own writes chunks.
//
// # What is on the disk
//
// A file has the suffix .partial until it is whole. The owner alone can read it. A packet is in the
// file within a second. After the end of the process, also by SIGKILL, at most the last block of
// the file is cut, and tshark and tcpdump show all blocks before it.
//
// # Losses
//
// The packet behind a loss carries the number of lost packets (epb_dropcount) and the reasons (a
// comment): of the interface, and of the disk. While a disk is full or slow, the recorder drops
// packets and counts them; it records again when there is room.
package record
