// Builds an OpenCL C kernel from a file and runs it over an array: run FILE NAME COUNT. The kernel has the signature
//   kernel void NAME(global const uint *in, global uint *out)
// and one work item for each element. Both arrays go through the standard streams as little-endian 32-bit words.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

static void check(cl_int err, const char *what) {
	if (err != CL_SUCCESS) {
		fprintf(stderr, "%s: OpenCL error %d\n", what, (int)err);
		exit(1);
	}
}

static void fail(const char *what) {
	perror(what);
	exit(1);
}

int main(int argc, char **argv) {
	if (argc != 4)
		return 2;
	static char text[1 << 20];
	FILE *f = fopen(argv[1], "rb");
	if (!f)
		fail(argv[1]);
	size_t length = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	size_t n = strtoull(argv[3], NULL, 10), bytes = n * sizeof(cl_uint);
	cl_uint *data = malloc(bytes ? bytes : 1);
	if (!data || fread(data, sizeof *data, n, stdin) != n)
		fail("input");

	cl_platform_id platform;
	cl_device_id device;
	cl_int err;
	check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
	check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	check(err, "clCreateContext");
	cl_command_queue queue = clCreateCommandQueue(context, device, 0, &err);
	check(err, "clCreateCommandQueue");
	const char *source = text;
	cl_program program = clCreateProgramWithSource(context, 1, &source, &length, &err);
	check(err, "clCreateProgramWithSource");
	if ((err = clBuildProgram(program, 1, &device, "", NULL, NULL)) != CL_SUCCESS) {
		static char log[1 << 16];
		clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
		fprintf(stderr, "%s\n", log);
		check(err, "clBuildProgram");
	}
	cl_kernel kernel = clCreateKernel(program, argv[2], &err);
	check(err, argv[2]);
	cl_mem in = clCreateBuffer(context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, bytes, data, &err);
	check(err, "clCreateBuffer");
	cl_mem out = clCreateBuffer(context, CL_MEM_WRITE_ONLY, bytes, NULL, &err);
	check(err, "clCreateBuffer");
	check(clSetKernelArg(kernel, 0, sizeof in, &in), "clSetKernelArg");
	check(clSetKernelArg(kernel, 1, sizeof out, &out), "clSetKernelArg");
	check(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &n, NULL, 0, NULL, NULL), "clEnqueueNDRangeKernel");
	check(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, bytes, data, 0, NULL, NULL), "clEnqueueReadBuffer");
	if (fwrite(data, sizeof *data, n, stdout) != n || fflush(stdout))
		fail("output");
	return 0;
}
