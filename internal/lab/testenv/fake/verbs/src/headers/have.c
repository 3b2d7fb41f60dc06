/* Compiles where the compiler, the C library and the headers of libibverbs are there. */
#include <infiniband/verbs.h>
#include <stdlib.h>

int main(void) { return EXIT_SUCCESS; }
