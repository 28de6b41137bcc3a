-- init.lua -- require 'models.llama': new(preset_or_options [, overrides]), presets, weights.
local model = require 'models.llama.model'

return {
  new = model.new,
  presets = require 'models.llama.presets',
  weights = require 'models.llama.weights',
  Llama = model.Llama, Block = model.Block,
}
