#include "server/http/http_message.h"

#include <arpa/inet.h>

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "boost/beast/http/status.hpp"

namespace aft::server {

bool HttpRequest::NeedsNoDns() const {
  absl::string_view host = Host();
  if (host.empty() || absl::EqualsIgnoreCase(host, "localhost")) return true;
  in6_addr address = {};  // large enough for both versions
  if (absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]")) {
    return inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1;
  }
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
}

std::string HttpRequest::Joined(absl::string_view name) const {
  std::string all;
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, name)) absl::StrAppend(&all, all.empty() ? "" : ",", value);
  }
  return all;
}

std::string HeadOf(const HttpPage& page, bool keep_alive, absl::string_view length) {
  namespace http = boost::beast::http;
  static const std::map<std::string, std::string> kAlways = {
      {"Cache-Control", "no-store"},
      {"Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Referrer-Policy", "no-referrer"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"}};
  const auto reason = http::obsolete_reason(static_cast<http::status>(page.status));
  std::string text = absl::StrCat("HTTP/1.1 ", page.status, " ",
                                  absl::string_view(reason.data(), reason.size()), "\r\n");
  const auto add = [&text](absl::string_view name, absl::string_view value) {
    absl::StrAppend(&text, name, ": ", value, "\r\n");
  };
  add("Connection", keep_alive ? "keep-alive" : "close");
  // RFC 9110, 5.6.7
  add("Date", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()));
  if (!page.content_type.empty()) add("Content-Type", page.content_type);
  for (const auto& [name, value] : kAlways) {
    if (page.headers.count(name) == 0) add(name, value);
  }
  for (const auto& [name, value] : page.headers) add(name, value);
  return absl::StrCat(text, length, "\r\n");
}

}  // namespace aft::server
