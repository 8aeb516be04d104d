/* HMAC-SHA256 (RFC 2104, FIPS 180-4) of short texts, for peers that are made by hand. */
#include <stdint.h>
#include <string.h>

static uint32_t turned(uint32_t word, int by) {
    return word >> by | word << (32 - by);
}

static void sha256_block(uint32_t *state, const unsigned char *block) {
    static const uint32_t K[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
            (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25);
        uint32_t first = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
        uint32_t a = turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22);
        uint32_t second = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first, s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

/* Of up to 247 bytes. */
static void sha256(const unsigned char *text, size_t length, unsigned char out[32]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
        0x1f83d9ab, 0x5be0cd19};
    unsigned char padded[256] = {0};
    size_t whole = (length + 9 + 63) / 64 * 64;
    memcpy(padded, text, length);
    padded[length] = 0x80;
    padded[whole - 1] = (unsigned char)(length * 8);
    padded[whole - 2] = (unsigned char)(length >> 5);
    for (size_t at = 0; at < whole; at += 64) sha256_block(state, padded + at);
    for (int i = 0; i < 32; i++) out[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
}

/* Under a key of 16 bytes, of a text of up to 128. */
static void hmac_sha256(
    const unsigned char key[16], const unsigned char *text, size_t length, unsigned char out[32]) {
    unsigned char inner[64 + 128] = {0}, outer[64 + 32] = {0};
    memcpy(inner, key, 16), memcpy(outer, key, 16);
    for (int i = 0; i < 64; i++) inner[i] ^= 0x36, outer[i] ^= 0x5c;
    memcpy(inner + 64, text, length);
    sha256(inner, 64 + length, outer + 64);
    sha256(outer, 64 + 32, out);
}
