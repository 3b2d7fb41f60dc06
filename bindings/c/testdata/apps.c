/* A file with an application: opening it runs the application, which sends on what comes to its queue. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "penstock.h"

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #x, e.code, e.text); exit(1); } } while (0)

static const char yaml[] =
	"penstock:\n"
	"  memory_regions:\n"
	"    - {name: in, kind: host, buf_size: 2KiB, num_bufs: 512}\n"
	"    - {name: out, kind: host, buf_size: 2KiB, num_bufs: 512}\n"
	"  interfaces:\n"
	"    - {name: near, engine: sim, address: 'sim://capi-near?loop', rx: {queues: [{memory_regions: [in]}]}, tx: {queues: [{memory_regions: [out]}]}}\n"
	"    - {name: far, engine: sim, address: 'sim://capi-far?loop', rx: {queues: [{memory_regions: [in]}]}, tx: {queues: [{memory_regions: [out]}]}}\n"
	"  applications: [{name: forwarder, kind: forward, interface: near, to: far, cpu_core: %d}]\n";

int main(void)
{
	penstock_error e = {0};
	char text[65536];
	/* What cannot run is missing, with the reason. */
	snprintf(text, sizeof text, yaml, 4094);
	CHECK(penstock_open(text, &e) == 0 && e.code == PENSTOCK_MISSING && strstr(e.text, "cannot run on core 4094"));
	snprintf(text, sizeof text, yaml, -1);
	penstock_handle s = penstock_open(text, &e);
	CHECK(s);
	CHECK(penstock_rx(s, "near", 0, &e) == 0 && strstr(e.text, "the application \"forwarder\" takes the packets of receive queue 0 of \"near\""));
	penstock_handle rx = penstock_rx(s, "far", 0, &e);
	CHECK(rx);
	enum { PACKETS = 8, ROOM = 64 };
	unsigned char frame[64];
	penstock_segment out = {.data = frame, .size = sizeof frame}, got[ROOM];
	memset(frame, 0xff, 6), memset(frame + 6, 2, 6);
	for (int i = 0; i < PACKETS; i++) {
		memset(frame + 14, i, sizeof frame - 14);
		CHECK(penstock_send(s, "near", 0, &out, 1, &e) == 1);
	}
	for (int seen = 0; seen < PACKETS;) {
		int64_t n = penstock_burst(rx, got, ROOM, 60000, &e);
		CHECK(n > 0);
		for (int64_t i = 0; i < n; i++, seen++)
			CHECK(got[i].size == sizeof frame && ((const unsigned char *)got[i].data)[40] == seen);
		CHECK(penstock_release(rx, &e) == 0);
	}
	CHECK(penstock_status(s, text, sizeof text, &e) > 0 && strstr(text, "\"Applications\":[{\"name\":\"forwarder\",\"kind\":\"forward\""));
	CHECK(penstock_close(rx, &e) == 0 && penstock_close(s, &e) == 0);
	puts("ok");
	return 0;
}
