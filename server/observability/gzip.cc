#include "server/observability/gzip.h"

#include <zlib.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace aft::server {

bool AcceptsGzip(absl::string_view accept_encoding) {
  for (const absl::string_view coding : absl::StrSplit(accept_encoding, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(coding, absl::MaxSplits(';', 1));
    if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(parts.first), "gzip")) continue;
    absl::string_view weight = absl::StripAsciiWhitespace(parts.second);
    double q = 1;
    return !absl::ConsumePrefix(&weight, "q=") || (absl::SimpleAtod(weight, &q) && q > 0);
  }
  return false;
}

std::optional<std::string> Gzip(const std::string& text) {
  constexpr int kGzipFormat = 15 + 16;  // window bits, and 16 for the header of gzip
  z_stream stream{};
  // Samples of metrics are similar: even the fastest level makes them ten times smaller.
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipFormat, /*memLevel=*/8,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return std::nullopt;
  }
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const bool done = deflate(&stream, Z_FINISH) == Z_STREAM_END;
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  if (!done) return std::nullopt;
  return packed;
}

}  // namespace aft::server
