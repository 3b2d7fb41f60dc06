/* Batches of a reorder plan: what is known of each, and its elements. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "penstock.h"

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #x, e.code, e.text); exit(1); } } while (0)

enum { PER = 128, BATCHES = 3, LOST = 70, SIZE = 14 + 4 + 8, ROOM = 4096 };

static void frame(unsigned char *f, uint32_t number)
{
	memset(f, 0xff, 6);
	memset(f + 6, 2, 6);
	f[12] = 0x88, f[13] = 0xb5;
	f[14] = (unsigned char)(number >> 24), f[15] = (unsigned char)(number >> 16), f[16] = (unsigned char)(number >> 8), f[17] = (unsigned char)number;
	for (int k = 0; k < 4; k++)
		f[18 + 2 * k] = (unsigned char)(number >> 8), f[19 + 2 * k] = (unsigned char)number;
}

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
	static penstock_segment got[ROOM];
	static unsigned char frames[(BATCHES + 2) * PER][SIZE];
	static penstock_segment out[(BATCHES + 2) * PER];
	int n = 0, sent = 0, seen = 0;
	for (uint32_t k = 0; k < BATCHES * PER; k++)
		if (k != LOST)
			frame(frames[n++], k ^ 1); /* neighbours overtake each other; 71 is lost */
	for (uint32_t k = BATCHES; k < BATCHES + 2; k++) /* have the others leave */
		frame(frames[n++], k * PER);
	for (int i = 0; i < n; i++)
		out[i] = (penstock_segment){.data = frames[i], .size = SIZE};
	penstock_batch b = {0};
	uint64_t present[2];
	CHECK(penstock_batch_of(rx, 0, &b, present, 2, &e) == PENSTOCK_INVALID); /* the caller has no packets */
	while (seen < BATCHES) {
		if (sent < n) {
			int64_t k = penstock_send(s, "loop", 0, out + sent, n - sent < 64 ? n - sent : 64, &e);
			CHECK(k >= 0);
			sent += k;
		}
		int64_t k = penstock_burst(rx, got, ROOM, 1000, &e);
		CHECK(k >= 0);
		for (int64_t i = 0; i < k; i++, seen++) {
			memset(present, 0, sizeof present);
			CHECK(penstock_batch_of(rx, got[i].packet, &b, present, 2, &e) == 1);
			CHECK(b.id == seen && b.per_batch == PER && b.packets == (seen == 0 ? PER - 1 : PER) && b.words == 2 && !b.timed_out);
			CHECK(!strcmp(b.what.dtype, "f32") && b.what.rank == 2 && b.what.shape[0] == PER && b.what.shape[1] == 4 && got[i].size == PER * 16);
			for (int place = 0; place < PER; place++) {
				int is = !(seen == 0 && place == (LOST ^ 1));
				float want = is ? (float)(seen * PER + place) : 0, have[4];
				memcpy(have, (const char *)got[i].data + 16 * place, 16);
				CHECK((int)(present[place / 64] >> place % 64 & 1) == is && have[0] == want && have[3] == want);
			}
			uint64_t one = 7;
			CHECK(penstock_batch_of(rx, got[i].packet, &b, NULL, 0, &e) == 1 && b.words == 2);
			CHECK(penstock_batch_of(rx, got[i].packet, &b, &one, 1, &e) == 1 && one == present[0]);
		}
		if (k > 0) {
			CHECK(penstock_batch_of(rx, got[k - 1].packet + 1, &b, present, 2, &e) == PENSTOCK_INVALID);
			CHECK(penstock_batch_of(rx, 0, NULL, present, 2, &e) == PENSTOCK_INVALID);
			CHECK(penstock_release(rx, &e) == 0);
			CHECK(penstock_batch_of(rx, 0, &b, present, 2, &e) == PENSTOCK_INVALID);
		}
	}
	CHECK(penstock_close(rx, &e) == 0 && penstock_close(s, &e) == 0);
	puts("ok");
	return 0;
}
