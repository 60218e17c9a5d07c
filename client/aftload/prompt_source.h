#ifndef AFT_CLIENT_AFTLOAD_PROMPT_SOURCE_H_
#define AFT_CLIENT_AFTLOAD_PROMPT_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace aft::client {

// `bytes` bytes of English words, lower case, drawn by `seed`.
std::string RandomPrompt(size_t bytes, uint64_t seed);

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTLOAD_PROMPT_SOURCE_H_
