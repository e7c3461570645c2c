/** An expression, or a class that a model of your own was trained with. */
export type Expression = "surprise" | "fear" | "disgust" | "happiness" | "sadness" | "anger" | "neutral" | "contempt" | (string & {});
export interface Point { x: number; y: number }

/** A face; coordinates in pixels of the upright image. */
export interface Face {
  box: Point & { width: number; height: number };
  landmarks: Record<"left_eye" | "right_eye" | "nose" | "mouth_left" | "mouth_right", Point>;
  detection_score: number;
  roll_degrees: number;
  label: Expression;
  /** Probability of `label`, 0 to 1. */
  confidence: number;
  /** Whether `confidence` is below the model's threshold. */
  uncertain: boolean;
  /** Why the label may be wrong. */
  reasons: ("small" | "blurred" | "turned" | "dark" | "covered" | "ambiguous")[];
  probabilities: Partial<Record<Expression, number>>;
  /** Number of the person in a stream, from 1. */
  track?: number;
}

export interface LabeledImage { width: number; height: number; faces: Face[]; timings_ms: Record<string, number> }

export interface Labeler {
  /** Load the models; resolves to what runs. */
  open(): Promise<{ model: string; precision: string; provider: string; detector: string }>;
  label(image: Blob | ImageBitmap): Promise<{ model: string; images: [LabeledImage] }>;
}

/** Label the faces of an image in this tab; nothing is sent. */
export function label(image: Blob | string | URL | ImageBitmapSource): Promise<LabeledImage>;
/** `base`: address of the folder that `make page` writes, relative to the document; needed if a bundler moves the module. */
export function labeler(options?: { base?: string; loaded?: (bytes: number, total: number) => void }): Promise<Labeler>;

/** `<mien-camera>`: a start button, then the camera, or the video of `src`, with a box and a label for each face; `base` as of labeler(). */
export interface MienCamera extends HTMLElement {
  start(): Promise<void>;
  stop(): void;
  addEventListener(type: "faces", listener: (event: CustomEvent<Face[]>) => void): void;
  addEventListener(...rest: Parameters<HTMLElement["addEventListener"]>): void;
}

declare global {
  interface HTMLElementTagNameMap { "mien-camera": MienCamera }
}
