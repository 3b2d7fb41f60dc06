// Package replay sends the packets of capture files through a transmit queue of any engine, each at
// its time, and checks what a receive queue gets of them.
//
// # Times
//
// All times count from one start, so a packet that is late does not make those behind it late: at
// half the speed packet k is due 2*(t_k-t_0) behind the start. Run sends the packets that are due
// in bursts, sleeps until a moment before the next one, and then looks at the clock again and
// again. A goroutine of its own reads and rewrites packets ahead, 16 MiB of them.
//
// # The check
//
// A Checker knows a packet by a 64-bit hash of its bytes; frames below the 60 bytes that an
// Ethernet carries count as filled up with zeros. What is received is the oldest packet with these
// bytes that was sent and has not come. If all of these have come, it is repeated. Bytes that were
// never sent are a changed packet if a packet of this length is missing in the end, else they are
// extra. A packet that comes behind one that was sent later is reordered. The Checker looks back
// 2^20 sent packets: what has not come by then is missing.
package replay
