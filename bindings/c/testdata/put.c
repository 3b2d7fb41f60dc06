/* A put between two systems of this process, over the Unix socket that is the argument: what a library for another machine shows under an emulator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "penstock.h"

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #x, e.code, e.text); exit(1); } } while (0)

int main(int argc, char **argv)
{
	enum { SIZE = 1 << 20 };
	penstock_error e = {0};
	char address[256], yaml[512];
	if (argc != 2)
		return 2;
	snprintf(address, sizeof address, "unix://%s", argv[1]);
	snprintf(yaml, sizeof yaml, "penstock: {transfers: {name: b, listen: ['%s']}}", address);
	penstock_handle b = penstock_open(yaml, &e);
	CHECK(b);
	penstock_handle a = penstock_open("penstock: {transfers: {name: a}}", &e);
	CHECK(a);
	penstock_handle from = penstock_alloc("from", SIZE, 0, &e), to = penstock_alloc("to", SIZE, 0, &e);
	CHECK(from && to);
	unsigned char *x = penstock_memory(from, NULL, &e), *y = penstock_memory(to, NULL, &e);
	for (int i = 0; i < SIZE; i++)
		x[i] = i * 7 + (i >> 8);
	CHECK(penstock_export(b, to, 0, SIZE, "there", PENSTOCK_WRITE, 0, &e));
	penstock_handle peer = penstock_dial(a, address, 30000, &e);
	CHECK(peer);
	penstock_handle there = penstock_lookup(peer, "there", 30000, NULL, NULL, &e);
	CHECK(there);
	penstock_block block = {from, 0, SIZE, there, 0};
	penstock_handle t = penstock_post(peer, PENSTOCK_PUT, &block, 1, NULL, &e);
	CHECK(t && penstock_wait(t, 60000, &e) == PENSTOCK_OK);
	CHECK(memcmp(x, y, SIZE) == 0);
	CHECK(penstock_close(a, &e) == 0 && penstock_close(b, &e) == 0);
	puts("ok");
	return 0;
}
