//go:build cgo

/* The ends of tensors that Python gives by DLPack. They are in C, because a consumer calls them from any thread, and at any time. */
#include "penstock.h"

/* What they need of DLPack's structures (dlpack.h), whose layouts are part of its ABI. */
typedef struct {
	char tensor[48]; /* DLTensor */
	void *context;   /* manager_ctx */
	void (*deleter)(void *);
} managed;

typedef struct {
	uint32_t version[2];
	void *context; /* manager_ctx */
	void (*deleter)(void *);
} managed_versioned;

static penstock_python_calls python;

/* drop gives a reference back. An exception that is under way stays under way. */
static void drop(void *object)
{
	void *type, *value, *trace;
	if (!python.initialized()) /* nobody is left to give it to */
		return;
	int state = python.ensure();
	python.fetch(&type, &value, &trace);
	python.decref(object);
	python.restore(type, value, trace);
	python.release(state);
}

static void deleter(void *m) { drop(((managed *)m)->context); }

static void deleter_versioned(void *m) { drop(((managed_versioned *)m)->context); }

static void destructor(void *capsule)
{
	if (python.valid(capsule, "dltensor"))
		deleter(python.pointer(capsule, "dltensor"));
	else if (python.valid(capsule, "dltensor_versioned"))
		deleter_versioned(python.pointer(capsule, "dltensor_versioned"));
}

int32_t penstock_python(const penstock_python_calls *calls, penstock_python_ends *ends)
{
	if (!calls || !ends || !calls->initialized || !calls->ensure || !calls->release || !calls->fetch || !calls->restore || !calls->decref || !calls->valid || !calls->pointer)
		return PENSTOCK_INVALID;
	python = *calls;
	*ends = (penstock_python_ends){deleter, deleter_versioned, destructor};
	return PENSTOCK_OK;
}
