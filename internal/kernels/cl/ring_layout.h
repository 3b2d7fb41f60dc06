// Made of descHeader and descSlot of package ring by its tests; do not edit: go test -run ^TestLayoutInC$ -update .
typedef struct {
	ulong seq; // at 0
	ulong off; // at 8
	ulong len; // at 16
	long time; // at 24
	ulong tag; // at 32
	ulong value; // at 40
	uint flow; // at 48
	uint hash; // at 52
	uint source; // at 56
	uint flags; // at 60
} ps_slot;
typedef struct {
	ulong magic; // at 0
	uint version; // at 8
	uint slotsize; // at 12
	ulong slots; // at 16
	ulong payload; // at 24
	ulong closed; // at 32
	ulong left; // at 40
	uchar pad0[80]; // at 48
	ulong tail; // at 128
	ulong putretries; // at 136
	ulong refused; // at 144
	ulong dropped; // at 152
	uchar pad1[96]; // at 160
	ulong head; // at 256
	ulong getretries; // at 264
	ulong empty; // at 272
	ulong released; // at 280
	uchar pad2[96]; // at 288
} ps_ring;
typedef char ps_slot_has_its_size[sizeof(ps_slot) == 64 ? 1 : -1];
typedef char ps_ring_has_its_size[sizeof(ps_ring) == 384 ? 1 : -1];
#define PS_DESC_VOID 1u
#define PS_DESC_TRUNCATED 2u
#define PS_DESC_FRAME 4u
