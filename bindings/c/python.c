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

/* drop gives a reference back. That is allowed while an exception is under way, as a call of a function in Python is not. */
static void drop(void *object)
{
	if (!python.initialized()) /* nobody is left to give it to */
		return;
	int state = python.ensure();
	python.decref(object);
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
	if (!calls || !ends || !calls->initialized || !calls->ensure || !calls->release || !calls->decref || !calls->valid || !calls->pointer)
		return PENSTOCK_INVALID;
	python = *calls;
	*ends = (penstock_python_ends){deleter, deleter_versioned, destructor};
	return PENSTOCK_OK;
}
