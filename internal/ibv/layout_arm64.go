package ibv

//lint:file-ignore U1000 a structure has all its fields, also those that no code reads

// mutexSize is sizeof(pthread_mutex_t) of glibc; musl has 40, which the check of an opened device
// tells.
const mutexSize = 48
