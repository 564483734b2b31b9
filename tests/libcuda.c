/* A library in place of libcuda.so.1 and libcublas.so.N, for tests. It computes a small product, and answers as the file
 * says whose path is in SIMULATED_CUDA. Lines: "gpus N", "name GPU TEXT", "processors GPU N", "speed GPU TFLOPS",
 * "deviating GPU 1" (wrong in the same way each time), "unstable GPU N" (wrong in its Nth product), "error GPU CALL CODE",
 * "hang GPU CALL". Of each memory only the beginning is real. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_GPUS 64
#define REAL (1 << 20)
#define VALUES 1024

struct memory { uint64_t begin; size_t size; };
struct event { double at; };

static __thread int current = -1;
static double clock_s[MAX_GPUS];
static long products[MAX_GPUS];
static struct memory memories[1024];
static int memory_count;

static int find_line(const char *word, int gpu, const char *call, char *rest) {
    FILE *file = fopen(getenv("SIMULATED_CUDA"), "r");
    char line[256], key[64], found_call[64];
    int number, at, found = 0;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%63s %d%n", key, &number, &at) < 2 || strcmp(key, word) || number != gpu) continue;
        if (call && (sscanf(line + at, " %63s%n", found_call, &number) < 1 || strcmp(found_call, call))) continue;
        snprintf(rest, 200, "%s", line + at + (call ? number : 0) + (line[at + (call ? number : 0)] == ' '));
        found = 1;
    }
    if (file) fclose(file);
    return found;
}

static double read_number(const char *word, int gpu, double missing) {
    char rest[200];
    return find_line(word, gpu, NULL, rest) ? atof(rest) : missing;
}

static int check_call(const char *call, int gpu) {
    char rest[200];
    while (find_line("hang", gpu, call, rest)) pause();
    return find_line("error", gpu, call, rest) ? atoi(rest) : 0;
}
#define CHECK(gpu) do { int code_ = check_call(__func__, gpu); if (code_) return code_; } while (0)

int cuInit(unsigned flags) { (void)flags; CHECK(-1); return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) {
    FILE *file = fopen(getenv("SIMULATED_CUDA"), "r");
    char line[256];
    *count = 0;
    while (file && fgets(line, sizeof line, file)) sscanf(line, "gpus %d", count);
    if (file) fclose(file);
    return *count ? 0 : 100;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    char rest[200];
    snprintf(name, length, "%s", find_line("name", device, NULL, rest) ? rest : "NVIDIA Simulated 1");
    return 0;
}
int cuDeviceGetPCIBusId(char *text, int length, int device) {
    static const int buses[] = {0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xAB, 0xBB, 0xCB};
    snprintf(text, length, "%04X:%02X:00.0", device / 8, buses[device % 8]);
    return 0;
}
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0, 16); uuid[15] = (char)device; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : (int)read_number("processors", device, 132);
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    CHECK(device);
    *context = (void *)(intptr_t)(device + 1);
    return 0;
}
int cuCtxSetCurrent(void *context) { current = (int)(intptr_t)context - 1; return 0; }
int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
    CHECK(current);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 2;
    *pointer = (uint64_t)(uintptr_t)memory;
    memories[memory_count++] = (struct memory){*pointer, size};
    return 0;
}
static size_t real_part(uint64_t pointer, size_t size) {
    for (int number = 0; number < memory_count; ++number) {
        struct memory *of = &memories[number];
        if (pointer < of->begin || pointer >= of->begin + of->size) continue;
        size_t offset = pointer - of->begin, left = offset < REAL ? REAL - offset : 0;
        if (offset + size > of->size) abort();
        return size < left ? size : left;
    }
    abort();
}
int cuMemcpyHtoD_v2(uint64_t to, const char *from, size_t size) {
    CHECK(current);
    memcpy((void *)(uintptr_t)to, from, real_part(to, size));
    return 0;
}
int cuMemcpyDtoH_v2(char *to, uint64_t from, size_t size) {
    CHECK(current);
    size_t real = real_part(from, size);
    memcpy(to, (void *)(uintptr_t)from, real);
    memset(to + real, 0, size - real);
    return 0;
}
int cuMemsetD32_v2(uint64_t to, unsigned value, size_t count) {
    size_t real = real_part(to, 4 * count);
    memset((void *)(uintptr_t)to, (int)value, real);
    return 0;
}
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof(struct event)); return 0; }
int cuEventRecord(struct event *event, void *stream) { (void)stream; event->at = clock_s[current]; return 0; }
int cuEventSynchronize(struct event *event) { (void)event; CHECK(current); return 0; }
int cuEventElapsedTime(float *milliseconds, struct event *begin, struct event *end) {
    *milliseconds = (float)((end->at - begin->at) * 1e3);
    return 0;
}
int cuGetErrorString(int code, const char **text) {
    *text = code == 100 ? "no CUDA-capable device is detected"
        : code == 2     ? "out of memory"
        : code == 214   ? "uncorrectable ECC error encountered"
        : code == 802   ? "system not yet initialized"
                        : NULL;
    return *text ? 0 : 1;
}

int cublasCreate_v2(void **handle) { CHECK(current); *handle = (void *)(intptr_t)(current + 1); return 0; }
int cublasGetVersion_v2(void *handle, int *version) { (void)handle; *version = 130100; return 0; }

static float widen(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

int cublasGemmEx(void *handle, int transa, int transb, int m, int n, int k, const float *alpha, uint64_t a, int a_type, int lda,
                 uint64_t b, int b_type, int ldb, const float *beta, uint64_t c, int c_type, int ldc, int compute, int algorithm) {
    if (handle != (void *)(intptr_t)(current + 1) || transa || transb || a_type != 14 || b_type != 14 || c_type || lda != m
        || ldb != k || ldc != m || *beta != 1.0f || compute != 68 || algorithm != -1)
        return 7;
    CHECK(current);
    const uint16_t *left = (void *)(uintptr_t)a, *right = (void *)(uintptr_t)b;
    float *result = (void *)(uintptr_t)c;
    long values = (long)m * n < VALUES ? (long)m * n : VALUES, shared = k < 8 ? k : 8;
    for (long place = 0; place < values; ++place) {
        float sum = 0.0f;
        for (long step = 0; step < shared; ++step) sum += widen(left[place + step]) * widen(right[place + step]);
        if (place == 7 && read_number("deviating", current, 0)) sum += 1.0f;
        result[place] += *alpha * sum;
    }
    ++products[current];
    if (products[current] == (long)read_number("unstable", current, -1)) result[5] += 1.0f;
    clock_s[current] += 2.0 * m * n * k / (read_number("speed", current, 700) * 1e12);
    return 0;
}
