// The frames that are sent: Ethernet, IPv4, UDP, a sequence number, the number of the slot that the frame was made in, and
// words that follow from that number, so that every byte of a frame can be checked by whoever gets it.
#include "xdpref.h"
#include <arpa/inet.h>
#include <string.h>

static uint64_t word(uint32_t slot, uint32_t at)
{
	return (slot + 1) * 0x9e3779b97f4a7c15ull + at * 0xd1b54a32d192ed03ull;
}

static const unsigned char addresses[12] = {2, 0x77, 0, 0, 0, 2, 2, 0x77, 0, 0, 0, 1};

// frame_headers writes the 42 bytes of headers.
static void frame_headers(char *f, uint32_t size)
{
	unsigned char *p = (unsigned char *)f;
	uint32_t ip = size - 14, udp = size - 34, sum = 0;
	memcpy(p, addresses, 12);
	p[12] = 8, p[13] = 0;
	memcpy(p + 14, "\x45\0\0\0\0\0\0\0\x40\x11\0\0\x0a\x4d\0\1\x0a\x4d\0\2", 20);
	p[16] = ip >> 8, p[17] = ip;
	for (int i = 14; i < 34; i += 2)
		sum += p[i] << 8 | p[i + 1];
	sum = (sum >> 16) + (sum & 0xffff);
	sum = ~((sum >> 16) + sum);
	p[24] = sum >> 8, p[25] = sum;
	p[34] = 4000 >> 8, p[35] = 4000 & 255;
	p[36] = UDP_PORT >> 8, p[37] = UDP_PORT & 255;
	p[38] = udp >> 8, p[39] = udp;
	p[40] = p[41] = 0;
}

// frame_make writes a whole frame; its sequence number is that of the slot.
void frame_make(char *p, uint32_t size, uint32_t slot)
{
	uint64_t seq = slot;
	frame_headers(p, size);
	memcpy(p + STAMP, &seq, 8);
	memcpy(p + ORIGIN, &slot, 4);
	memset(p + ORIGIN + 4, 0, PATTERN - ORIGIN - 4);
	for (uint32_t at = PATTERN; at < size; at += 8) {
		uint64_t w = word(slot, at);
		memcpy(p + at, &w, size - at < 8 ? size - at : 8);
	}
}

// frame_check says what is wrong with a frame, or returns 0 and its sequence number. Its MAC addresses may have been swapped.
const char *frame_check(const char *p, uint32_t len, uint32_t size, uint64_t *seq)
{
	char want[HEADER];
	uint32_t slot;
	if (len != size)
		return "length";
	frame_headers(want, size);
	if (memcmp(p + 12, want + 12, HEADER - 12))
		return "headers";
	if ((memcmp(p, addresses, 6) || memcmp(p + 6, addresses + 6, 6)) && (memcmp(p, addresses + 6, 6) || memcmp(p + 6, addresses, 6)))
		return "addresses";
	memcpy(seq, p + STAMP, 8);
	memcpy(&slot, p + ORIGIN, 4);
	if (p[ORIGIN + 4] || p[ORIGIN + 5])
		return "padding";
	uint64_t w, diff = 0;
	uint32_t at = PATTERN;
	for (; at + 8 <= size; at += 8) {
		memcpy(&w, p + at, 8);
		diff |= w ^ word(slot, at);
	}
	w = word(slot, at);
	if (diff || memcmp(p + at, &w, size - at))
		return "payload";
	return 0;
}
