#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "server/http/http_handler.h"
#include "server/http/http_message.h"

namespace aft::server {

// Pages by their path, compressed if the client takes gzip. GET and HEAD; other paths are 404,
// other methods 405. A page is made on the server's thread, one at a time.
class HttpPages final : public HttpHandler {
 public:
  using Pages = std::map<std::string, std::function<HttpPage()>>;

  explicit HttpPages(Pages pages) : pages_(std::move(pages)) {}

  std::variant<HttpPage, std::shared_ptr<HttpTask>> Handle(const HttpRequest& request) override;

 private:
  HttpPage Find(const HttpRequest& request) const;

  const Pages pages_;
};

}  // namespace aft::server
