#include "server/http/http_pages.h"

#include <exception>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/observability/gzip.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

constexpr size_t kGzipFrom = 1024;  // bytes; less is a packet anyway

}  // namespace

HttpPage HttpPages::Find(const HttpRequest& request) const {
  if (request.at_loopback && !request.NeedsNoDns()) {
    return {.status = 403, .body = "Host: must be localhost or an IP address\n"};
  }
  const auto found = pages_.find(request.path);
  if (found == pages_.end()) {
    const auto name = [](std::string* out, const auto& page) { out->append(page.first); };
    return {.status = 404,
            .body = absl::StrCat("not found; there are ", absl::StrJoin(pages_, " ", name), "\n")};
  }
  if (request.method != "GET" && request.method != "HEAD") {
    return {.status = 405, .body = "GET or HEAD\n", .headers = {{"Allow", "GET, HEAD"}}};
  }
  try {
    return found->second();
  } catch (const std::exception& error) {  // out of memory
    log::Error("http.failed", {{"path", found->first}, {"error", error.what()}});
    return {.status = 500, .body = "internal error\n"};
  }
}

std::variant<HttpPage, std::shared_ptr<HttpTask>> HttpPages::Handle(const HttpRequest& request) {
  HttpPage page = Find(request);
  page.headers.emplace("Vary", "Accept-Encoding");
  if (page.body.size() >= kGzipFrom && AcceptsGzip(request.Header("Accept-Encoding"))) {
    if (std::optional<std::string> packed = Gzip(page.body)) {
      page.body = *std::move(packed);
      page.headers.emplace("Content-Encoding", "gzip");
    }
  }
  return page;
}

}  // namespace aft::server
