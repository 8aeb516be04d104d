/* Another network of NCCL's, all of whose symbols are visible to everyone. */
static const char *const NAME = "stranger";
#define TABLE(version) const void *ncclNetPlugin_v##version[22];
TABLE(6) TABLE(7) TABLE(8) TABLE(9) TABLE(10) TABLE(11) TABLE(12)

int neighbour(void) {
    ncclNetPlugin_v6[0] = ncclNetPlugin_v12[0] = NAME;
    return 0;
}

/* What a library's own allocator or runtime would be found as. */
void rust_eh_personality(void) { __builtin_trap(); }
void rust_panic(void) { __builtin_trap(); }
void __rust_alloc(void) { __builtin_trap(); }
void __rust_dealloc(void) { __builtin_trap(); }
