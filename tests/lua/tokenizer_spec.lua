--- tokenizer_spec.lua -- the byte tokenizer, and what broken UTF-8 becomes.
local z3 = require 'z3'

local function code_of(fn, ...)
  local ok, e = pcall(fn, ...)
  return not ok and e.code or nil
end

describe('tokenizer.bytes', function()
  local tok = z3.tokenizer.bytes()

  it('gives the bytes as ids and back', function()
    assert.equal(256, tok.vocab_size)
    assert.same({ 72, 105, 10 }, tok:encode 'Hi\n')
    assert.same({}, tok:encode '')
    assert.equal('', tok:decode {})
    for _, text in ipairs { 'Hi\n', 'käse 日本 🙂 \0 end', ('x'):rep(10000) } do
      assert.equal(text, tok:decode(tok:encode(text)))
    end
    assert.same({ 0xC3, 0xA4 }, tok:encode('ä', { add_special_tokens = true }))
    assert.equal('ä', tok:decode({ 0xC3, 0xA4 }, { skip_special_tokens = true }))
  end)

  it('decodes integer tensors', function()
    assert.equal('abc', tok:decode(z3.tensor({ 97, 98, 99 }, { dtype = 'i32' })))
    assert.equal('abcd', tok:decode(z3.tensor({ { 97, 98 }, { 99, 100 } }, { dtype = 'i64' })))
  end)

  it('replaces each maximal ill-formed piece by U+FFFD', function()
    local r = '\239\191\189'
    local function decoded(...) return tok:decode { ... } end
    assert.equal(r, decoded(0xFF))
    assert.equal(r .. r, decoded(0x80, 0xBF))
    assert.equal('a' .. r .. 'b', decoded(97, 0xC3, 98))            -- cut short
    assert.equal(r, decoded(0xF0, 0x9F, 0x99))                      -- a prefix of four bytes is one piece
    assert.equal(r .. r .. 'A', decoded(0xE0, 0x80, 65))            -- overlong: E0 wants A0..BF
    assert.equal(r .. r .. r, decoded(0xED, 0xA0, 0x80))            -- a surrogate
    assert.equal(r .. r .. r .. r, decoded(0xF4, 0x90, 0x80, 0x80)) -- above U+10FFFF
    assert.equal(r .. r, decoded(0xC0, 0xAF))
  end)

  it('refuses ids that are no bytes', function()
    for _, id in ipairs { 256, -1, 1.5 } do assert.equal('ARG', code_of(tok.decode, tok, { id })) end
    assert.equal('ARG', code_of(tok.decode, tok, { 'a' }))
    assert.equal('ARG', code_of(tok.encode, tok, 5))
    assert.equal('ARG', code_of(tok.encode, tok, 'x', { add_special_token = true }))
    assert.equal('UNSUPPORTED', code_of(tok.chat, tok, {}))
    assert.equal('UNSUPPORTED', code_of(z3.tokenizer.load, 'somewhere'))
  end)
end)
