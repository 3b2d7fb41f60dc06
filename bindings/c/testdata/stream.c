/* A stream through a looped interface of the simulator, as a program of DAQIRI would read it: open, receive, release, close. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "penstock.h"

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #x, e.code, e.text); exit(1); } } while (0)

int main(int argc, char **argv)
{
	penstock_error e = {0};
	char yaml[65536] = {0};
	FILE *f = fopen(argv[argc - 1], "r");
	if (!f || !fread(yaml, 1, sizeof yaml - 1, f))
		return 2;
	fclose(f);
	penstock_handle s = penstock_open(yaml, &e);
	CHECK(s);
	penstock_handle rx = penstock_rx(s, "loop", 0, &e);
	CHECK(rx);
	enum { PACKETS = 200, ROOM = 4096 };
	static penstock_segment got[ROOM], out[PACKETS];
	static unsigned char frames[PACKETS][128];
	CHECK(penstock_burst(rx, got, ROOM, 0, &e) == 0);
	for (int i = 0; i < PACKETS; i++) {
		memset(frames[i], 0xff, 6); /* to all: the interface takes it */
		memset(frames[i] + 6, 2, 6);
		frames[i][12] = 0x88, frames[i][13] = 0xb5;
		memset(frames[i] + 14, i, 100);
		out[i] = (penstock_segment){.data = frames[i], .size = 64 + (i / 50) * 16};
	}
	int sent = 0, seen = 0;
	while (seen < PACKETS) {
		if (sent < PACKETS) {
			int64_t n = penstock_send(s, "loop", 0, out + sent, PACKETS - sent, &e);
			CHECK(n >= 0);
			sent += n;
		}
		int64_t n = penstock_burst(rx, got, ROOM, 1000, &e);
		CHECK(n >= 0);
		for (int64_t i = 0; i < n; i++, seen++) {
			const unsigned char *b = got[i].data;
			CHECK(got[i].size == 64u + (seen / 50) * 16 && b[14] == (seen & 0xff) && b[40] == (seen & 0xff));
		}
		if (n > 0) {
			penstock_batch b;
			CHECK(penstock_batch_of(rx, 0, &b, NULL, 0, &e) == 0); /* the queue has no reorder plan */
			CHECK(penstock_burst(rx, got, ROOM, 0, &e) == PENSTOCK_INVALID); /* what the caller has is given back first */
			CHECK(penstock_release(rx, &e) == 0);
		}
	}
	char text[65536];
	CHECK(penstock_status(s, text, sizeof text, &e) > 0);
	CHECK(penstock_close(rx, &e) == 0 && penstock_close(s, &e) == 0);
	puts("ok");
	return 0;
}
