// What a device of a test has, and what it has seen.
#ifndef PENSTOCK_RECORD_H
#define PENSTOCK_RECORD_H

#include <stdint.h>

enum {
	PS_SPLIT = 1 << 0,   // receives headers and the rest into two pools
	PS_TIMES = 1 << 1,   // a clock, times of reception, sending at a time
	PS_RATES = 1 << 2,   // limits the rate of a transmit queue
	PS_CUT = 1 << 3,     // checksums, and segmentation of TCP
	PS_HASH = 1 << 4,    // RSS with its hash
	PS_QUEUES = 1 << 5,  // receive queues that start and stop while the port runs
	PS_SLOW = 1 << 6,    // takes one packet of 32
	PS_DOWN = 1 << 7,    // its link is down
	PS_REMOVED = 1 << 8, // it was unplugged
	PS_LOSSES = 1 << 9,  // it has lost packets in every way
};

struct ps_recorded {
	int flows;
	uint32_t configured, key, flow_key, spread, mbps, timed, cuts, cut, headers;
	uint64_t rx_offloads, tx_offloads, time;
	uint8_t key_bytes[64];
};

void ps_record(int action, uint32_t more);
void ps_record_has(uint32_t more);
void ps_record_seen(struct ps_recorded *to);

#endif
